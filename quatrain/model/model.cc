// SPDX-License-Identifier: Apache-2.0
// The model as a value: units, layers, and the plain walks over them.
#include "quatrain/model/model.h"

#include <algorithm>

#include "quatrain/comm/self/self.h"
#include "quatrain/model/build.h"
#include "quatrain/nn/check.h"
#include "quatrain/nn/layer_row.h"
#include "quatrain/nn/unit_shard.h"

namespace quatrain {

namespace {

// Selective recomputation makes a rank's own rows of the norms' outputs again: what reads all rows
// gathers them.
TensorParallelOptions tensor_options(const BuildOptions& options) {
  TensorParallelOptions tensor = options.tensor;
  if (options.recompute == Recompute::kSelective) tensor.gather_again = true;
  return tensor;
}

TensorSplit split_of(const TensorParallel& tp, const BuildOptions& options) {
  TensorSplit split = tp.split();
  if (options.expert_exchange != nullptr) split.experts = options.experts;
  return split;
}

std::vector<StageLayers> stages_of(const ModelSpec& spec, const BuildOptions& options) {
  return options.stages.empty() ? stage_layers(spec.layers, {0}) : options.stages;
}

}  // namespace

Model::Model(const ModelSpec& spec, const BuildOptions& options)
    : spec_(spec),
      dtype_(options.dtype),
      device_(options.device),
      stages_(stages_of(spec, options)),
      alone_(make_self_communicator("tp")),
      tp_(std::make_unique<TensorParallel>(options.tp != nullptr ? *options.tp : *alone_,
                                           tensor_options(options))),
      split_(split_of(*tp_, options)),
      ep_(std::make_unique<ExpertParallel>(
          options.expert_exchange != nullptr ? *options.expert_exchange : *alone_, split_,
          options.ep_chunks)),
      cp_(std::make_unique<ContextParallel>(options.cp != nullptr ? *options.cp : *alone_,
                                            options.context, options.place_attention)),
      units_(build_units(spec, options, stages_, split_)),
      layers_(build_layers(spec, options, stages_, units_, {*tp_, *ep_, *cp_})) {}
Model::Model(Model&&) noexcept = default;
Model::~Model() = default;

std::int64_t Model::local_kv_heads() const {
  return std::max<std::int64_t>(1, spec_.kv_heads / tp_->degree());
}

int Model::kv_repeat() const {
  return std::max(1, tp_->degree() / std::max(1, static_cast<int>(spec_.kv_heads)));
}

std::span<const std::unique_ptr<Layer>> Model::layers_of(std::size_t index) const {
  std::size_t first = 0;
  for (std::size_t i = 0; i < index; ++i) first += static_cast<std::size_t>(stages_[i].size());
  return layers().subspan(first, static_cast<std::size_t>(stages_[index].size()));
}

Param& Model::param(std::string_view name) const {
  for (const auto& unit : units_) {
    const auto params = unit->params();
    const auto found = std::find_if(params.begin(), params.end(),
                                    [&](const Param& p) { return p.info.name == name; });
    if (found != params.end()) return *found;
  }
  fail_check(__FILE__, __LINE__, "found", fmt::format("the model has no parameter \"{}\"", name));
}

void Model::allocate(bool with_grads) {
  for (const auto& unit : units_) unit->allocate(with_grads);
}

void Model::initialise(std::uint64_t seed) {
  for (const auto& unit : units_) quatrain::initialise(*unit, seed);
}

at::Tensor forward_all(Model& model, const at::Tensor& tokens_BT, const Pass& pass,
                       std::vector<Stash>& stashes) {
  return forward_row(model.layers(), tokens_BT, pass, stashes);
}

void backward_all(Model& model, const Pass& pass, std::vector<Stash>& stashes) {
  backward_row(model.layers(), {}, pass, stashes);
}

}  // namespace quatrain
