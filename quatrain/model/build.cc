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
  explicit Dealer(ParamUnit& unit) : unit_(unit) {}

  ParamRange next(std::size_t count = 1) {
    CHECK(taken_ + count <= unit_.params().size(), "unit {} has {} parameters", unit_.name(),
          unit_.params().size());
    Param* first = &unit_.params()[taken_];
    taken_ += count;
    return {&unit_, first, first + (count - 1)};
  }
  ParamRange next_if(bool wanted, std::size_t count = 1) {
    return wanted ? next(count) : ParamRange{};
  }
  void finish() const {
    CHECK(taken_ == unit_.params().size(), "unit {} has {} parameters, {} are used", unit_.name(),
          unit_.params().size(), taken_);
  }

 private:
  ParamUnit& unit_;
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

std::string unit_name(std::int64_t layer, std::int64_t layers) {
  if (layer < 0) return "embedding";
  return layer < layers ? fmt::format("layers.{}", layer) : "head";
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

std::unique_ptr<Layer> build_block(const ModelSpec& spec, std::int64_t layer, ParamUnit& unit,
                                   const BlockContext& context, bool recomputed) {
  auto block = std::make_unique<Block>(spec, layer, unit, deal_block(spec, unit), context);
  if (recomputed) return std::make_unique<Recomputed>(std::move(block));
  return block;
}

}  // namespace

std::vector<std::unique_ptr<ParamUnit>> build_units(const ModelSpec& spec,
                                                    const BuildOptions& options,
                                                    const TensorParallel& tp) {
  check_buildable(spec);
  std::vector<LocalParameter> list = local_parameters(spec, tp.split());
  throw_if_any(set_trainable(list, options.trainable));
  std::vector<std::vector<LocalParameter>> parts(static_cast<std::size_t>(spec.layers) + 2);
  for (LocalParameter& local : list) {
    parts[static_cast<std::size_t>(local.info.layer + 1)].push_back(std::move(local));
  }
  std::vector<std::unique_ptr<ParamUnit>> units;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    units.push_back(
        std::make_unique<ParamUnit>(unit_name(static_cast<std::int64_t>(i) - 1, spec.layers),
                                    std::move(parts[i]), options.dtype, options.device));
  }
  return units;
}

std::vector<std::unique_ptr<Layer>> build_layers(
    const ModelSpec& spec, const BuildOptions& options,
    const std::vector<std::unique_ptr<ParamUnit>>& units, const TensorParallel& tp) {
  std::vector<std::unique_ptr<Layer>> layers;
  Dealer embedding(*units.front());
  const ParamRange tokens = embedding.next();
  const ParamRange positions = embedding.next_if(spec.position == PositionKind::kLearned);
  embedding.finish();
  layers.push_back(std::make_unique<Embedding>(spec, tokens, positions, tp));

  const BlockContext context{
      tp, make_rotary(spec, rotary_positions(spec, options), options.dtype, options.device),
      options.recompute == Recompute::kSelective};
  const bool recomputed = options.recompute == Recompute::kFull;
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    ParamUnit& unit = *units[static_cast<std::size_t>(i) + 1];
    layers.push_back(build_block(spec, i, unit, context, recomputed));
  }

  Dealer head(*units.back());
  HeadParams params;
  params.norm = head.next();
  params.norm_bias = head.next_if(spec.norm == NormKind::kLayerNorm);
  params.weight = spec.tied ? tokens : head.next();
  head.finish();
  layers.push_back(
      std::make_unique<Head>(spec, *units.back(), params, tp, options.head_chunk_tokens));
  return layers;
}

}  // namespace quatrain
