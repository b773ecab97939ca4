// SPDX-License-Identifier: Apache-2.0
// Builds the dense decoders: GPT-2 (Radford et al. 2019), Llama (arXiv:2302.13971, 3.1:
// arXiv:2407.21783), Qwen2 (arXiv:2407.10671) and Qwen3 (arXiv:2505.09388) differ in what their
// ModelSpec says, not in code. A unit's parameters are dealt out in the order of the one list.
#include "quatrain/model/build.h"

#include <fmt/format.h>

#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/nn/block.h"
#include "quatrain/nn/check.h"
#include "quatrain/nn/embedding.h"
#include "quatrain/nn/head.h"
#include "quatrain/nn/recompute.h"
#include "quatrain/spec/parameters.h"

namespace quatrain {
namespace {

// Hands out a unit's parameters in order, a range at a time.
class Dealer {
 public:
  explicit Dealer(ParamUnit& unit) : unit_(&unit) {}

  ParamRange next(std::size_t count = 1) {
    CHECK(taken_ + count <= unit_->params().size(), "unit {} has {} parameters", unit_->name(),
          unit_->params().size());
    Param* first = &unit_->params()[taken_];
    taken_ += count;
    return {unit_, first, first + (count - 1)};
  }
  ParamRange next_if(bool wanted, std::size_t count = 1) {
    return wanted ? next(count) : ParamRange{};
  }
  void finish() const {
    CHECK(taken_ == unit_->params().size(), "unit {} has {} parameters, {} are used", unit_->name(),
          unit_->params().size(), taken_);
  }

 private:
  ParamUnit* unit_;
  std::size_t taken_ = 0;
};

BlockParams deal_block(const ModelSpec& spec, ParamUnit& unit) {
  Dealer dealer(unit);
  const bool norm_bias = spec.norm == NormKind::kLayerNorm;
  const std::size_t up = spec.mlp == MlpKind::kSwiGlu ? 2 : 1;
  BlockParams params;
  params.norm1 = dealer.next();
  params.norm1_bias = dealer.next_if(norm_bias);
  params.attention.qkv = dealer.next(3);
  params.attention.qkv_bias = dealer.next_if(spec.qkv_bias, 3);
  params.attention.q_norm = dealer.next_if(spec.qk_norm);
  params.attention.k_norm = dealer.next_if(spec.qk_norm);
  params.attention.out = dealer.next();
  params.attention.out_bias = dealer.next_if(spec.out_bias);
  params.norm2 = dealer.next();
  params.norm2_bias = dealer.next_if(norm_bias);
  params.mlp.up = dealer.next(up);
  params.mlp.up_bias = dealer.next_if(spec.mlp_bias, up);
  params.mlp.down = dealer.next();
  params.mlp.down_bias = dealer.next_if(spec.mlp_bias);
  dealer.finish();
  return params;
}

void check_buildable(const ModelSpec& spec) {
  switch (spec.family) {
    case Family::kGpt2:
    case Family::kLlama:
    case Family::kQwen2:
    case Family::kQwen3:
      break;
    case Family::kMixtral:
    case Family::kQwen3Moe:
    case Family::kDeepseekV3:
      throw ConfigError(
          fmt::format("model.model_type = \"{}\" cannot be trained yet; families that can: gpt2 "
                      "llama qwen2 qwen3",
                      name(spec.family)));
  }
  if (spec.experts || spec.latent) {
    throw ConfigError(
        fmt::format("a {} model has neither experts nor latent attention", name(spec.family)));
  }
}

std::int64_t rotary_positions(const ModelSpec& spec, const BuildOptions& options) {
  return options.max_positions > 0 ? options.max_positions : spec.max_positions;
}

// Layers in order, each over the next of the units.
class StageBuilder {
 public:
  StageBuilder(const ModelSpec& spec, const BuildOptions& options, const Units& units,
               const TensorParallel& tp)
      : spec_(spec),
        options_(options),
        units_(units),
        tp_(tp),
        context_{tp,
                 make_rotary(spec, rotary_positions(spec, options), options.dtype, options.device),
                 options.recompute == Recompute::kSelective} {}

  // 0: the embedding, 1 to L the blocks, L + 1 the head.
  void add(int layer) {
    if (layer == 0) {
      layers_.push_back(embedding());
    } else if (layer <= spec_.layers) {
      layers_.push_back(block(layer - 1));
    } else {
      layers_.push_back(head());
    }
  }
  std::vector<std::unique_ptr<Layer>> layers() && {
    CHECK(taken_ == units_.size(), "{} units, {} are used", units_.size(), taken_);
    return std::move(layers_);
  }

 private:
  ParamUnit& next_unit() { return *units_.at(taken_++); }

  std::unique_ptr<Layer> embedding() {
    const bool learned = spec_.position == PositionKind::kLearned;
    Dealer dealer(next_unit());
    table_ = dealer.next();
    // A copied table is a unit of its own.
    const bool alone = table_.unit->params().size() == 1;
    Dealer own = learned && alone ? Dealer(next_unit()) : dealer;
    const ParamRange positions = own.next_if(learned);
    own.finish();
    return std::make_unique<Embedding>(spec_, table_, positions, tp_);
  }

  std::unique_ptr<Layer> block(std::int64_t index) {
    ParamUnit& unit = next_unit();
    auto block = std::make_unique<Block>(spec_, index, unit, deal_block(spec_, unit), context_);
    if (options_.recompute != Recompute::kFull) return block;
    return std::make_unique<Recomputed>(std::move(block));
  }

  std::unique_ptr<Layer> head() {
    ParamUnit& unit = next_unit();
    Dealer dealer(unit);
    HeadParams params;
    params.norm = dealer.next();
    params.norm_bias = dealer.next_if(spec_.norm == NormKind::kLayerNorm);
    if (spec_.tied && !table_.present()) table_ = Dealer(next_unit()).next();
    params.weight = spec_.tied ? table_ : dealer.next();
    dealer.finish();
    return std::make_unique<Head>(spec_, unit, params, tp_, options_.head_chunk_tokens);
  }

  const ModelSpec& spec_;
  const BuildOptions& options_;
  const Units& units_;
  const TensorParallel& tp_;
  BlockContext context_;
  std::size_t taken_ = 0;
  ParamRange table_;  // of the tokens, once there
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace

Units build_units(const ModelSpec& spec, const BuildOptions& options,
                  const std::vector<StageLayers>& stages, const TensorParallel& tp) {
  check_buildable(spec);
  Units units;
  for (UnitSpec& unit : unit_specs(spec, tp.split(), options.trainable, stages)) {
    units.push_back(std::make_unique<ParamUnit>(unit.name, std::move(unit.parameters),
                                                options.dtype, options.device));
  }
  return units;
}

std::vector<std::unique_ptr<Layer>> build_layers(const ModelSpec& spec, const BuildOptions& options,
                                                 const std::vector<StageLayers>& stages,
                                                 const Units& units, const TensorParallel& tp) {
  StageBuilder builder(spec, options, units, tp);
  for (const StageLayers& stage : stages) {
    for (int layer = stage.begin; layer < stage.end; ++layer) builder.add(layer);
  }
  return std::move(builder).layers();
}

}  // namespace quatrain
