// SPDX-License-Identifier: Apache-2.0
// Builds the decoders: GPT-2 (Radford et al. 2019), Llama (arXiv:2302.13971, 3.1:
// arXiv:2407.21783), Qwen2 (arXiv:2407.10671), Qwen3 and its mixture (arXiv:2505.09388), Mixtral
// (arXiv:2401.04088) and DeepSeek-V3 (arXiv:2412.19437) differ in what their ModelSpec says, not in
// code. A unit's parameters are dealt out in the order of the one list.
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

AttentionParams deal_attention(const ModelSpec& spec, Dealer& dealer) {
  AttentionParams params;
  params.qkv = dealer.next(3);
  params.qkv_bias = dealer.next_if(spec.qkv_bias, 3);
  params.q_norm = dealer.next_if(spec.qk_norm);
  params.k_norm = dealer.next_if(spec.qk_norm);
  params.out = dealer.next();
  params.out_bias = dealer.next_if(spec.out_bias);
  return params;
}

LatentAttentionParams deal_latent_attention(const ModelSpec& spec, Dealer& dealer) {
  const bool compressed = spec.latent->q_lora_rank > 0;
  LatentAttentionParams params;
  params.q_a = dealer.next_if(compressed);
  params.q_norm = dealer.next_if(compressed);
  params.q = dealer.next();
  params.kv_a = dealer.next();
  params.kv_norm = dealer.next();
  params.kv_b = dealer.next();
  params.out = dealer.next();
  params.out_bias = dealer.next_if(spec.out_bias);
  return params;
}

MlpParams deal_mlp(const ModelSpec& spec, Dealer& dealer) {
  const std::size_t up = spec.mlp == MlpKind::kSwiGlu ? 2 : 1;
  MlpParams params;
  params.up = dealer.next(up);
  params.up_bias = dealer.next_if(spec.mlp_bias, up);
  params.down = dealer.next();
  params.down_bias = dealer.next_if(spec.mlp_bias);
  return params;
}

ExpertParams deal_expert(Dealer& dealer) {
  ExpertParams params;
  params.up = dealer.next(2);
  params.down = dealer.next();
  return params;
}

MoeParams deal_moe(const Experts& experts, std::int64_t held, Dealer& dealer, Dealer& of_experts) {
  MoeParams params;
  params.router = dealer.next();
  params.bias = dealer.next_if(experts.selection_bias);
  for (std::int64_t e = 0; e < held; ++e) params.experts.push_back(deal_expert(of_experts));
  of_experts.finish();
  if (experts.num_shared > 0) params.shared = deal_expert(dealer);
  return params;
}

// `units`: the block's, and its experts' when it has any.
BlockParams deal_block(const ModelSpec& spec, const std::vector<ParamUnit*>& units,
                       std::int64_t held) {
  Dealer dealer(*units.front());
  const bool norm_bias = spec.norm == NormKind::kLayerNorm;
  BlockParams params;
  params.norm1 = dealer.next();
  params.norm1_bias = dealer.next_if(norm_bias);
  if (spec.latent) {
    params.attention = deal_latent_attention(spec, dealer);
  } else {
    params.attention = deal_attention(spec, dealer);
  }
  params.norm2 = dealer.next();
  params.norm2_bias = dealer.next_if(norm_bias);
  if (units.size() > 1) {
    Dealer of_experts(*units.back());
    params.mlp = deal_moe(*spec.experts, held, dealer, of_experts);
  } else {
    params.mlp = deal_mlp(spec, dealer);
  }
  dealer.finish();
  return params;
}

// A family says whether it has experts or latent attention; a spec made by hand may contradict it.
void check_buildable(const ModelSpec& spec) {
  const bool deepseek = spec.family == Family::kDeepseekV3;
  const bool mixture =
      deepseek || spec.family == Family::kMixtral || spec.family == Family::kQwen3Moe;
  if (spec.experts.has_value() != mixture) {
    throw ConfigError(
        fmt::format("a {} model has {}experts", name(spec.family), mixture ? "" : "no "));
  }
  if (spec.latent.has_value() != deepseek) {
    throw ConfigError(
        fmt::format("a {} model has {}latent attention", name(spec.family), deepseek ? "" : "no "));
  }
}

std::int64_t rotary_positions(const ModelSpec& spec, const BuildOptions& options) {
  return options.max_positions > 0 ? options.max_positions : spec.max_positions;
}

// Layers in order, each over the next of the units.
class StageBuilder {
 public:
  StageBuilder(const ModelSpec& spec, const BuildOptions& options, const Units& units,
               const ModelRanks& ranks)
      : spec_(spec),
        options_(options),
        units_(units),
        tp_(ranks.tp),
        context_{ranks,
                 make_rotary(spec, rotary_positions(spec, options), options.dtype, options.device),
                 options.router, options.recompute == Recompute::kSelective} {}

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
    std::vector<ParamUnit*> units{&next_unit()};
    if (spec_.layer_is_sparse(index)) units.push_back(&next_unit());
    const std::int64_t held =
        spec_.experts ? context_.ranks.ep.held(spec_.experts->num_experts).size() : 0;
    const BlockParams params = deal_block(spec_, units, held);
    auto block = std::make_unique<Block>(spec_, index, std::move(units), params, context_);
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
                  const std::vector<StageLayers>& stages, const TensorSplit& split) {
  check_buildable(spec);
  Units units;
  for (UnitSpec& unit : unit_specs(spec, split, options.trainable, stages)) {
    units.push_back(std::make_unique<ParamUnit>(unit.name, std::move(unit.parameters),
                                                options.dtype, options.device));
  }
  return units;
}

std::vector<std::unique_ptr<Layer>> build_layers(const ModelSpec& spec, const BuildOptions& options,
                                                 const std::vector<StageLayers>& stages,
                                                 const Units& units, const ModelRanks& ranks) {
  StageBuilder builder(spec, options, units, ranks);
  for (const StageLayers& stage : stages) {
    for (int layer = stage.begin; layer < stage.end; ++layer) builder.add(layer);
  }
  return std::move(builder).layers();
}

}  // namespace quatrain
