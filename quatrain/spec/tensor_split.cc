// SPDX-License-Identifier: Apache-2.0
#include "quatrain/spec/tensor_split.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "quatrain/base/text.h"

namespace quatrain {
namespace {

// With fewer key and value heads than ranks, neighbours hold the same head.
ShardSpec with_repeats(ShardSpec placement, const std::vector<std::int64_t>& shape, int degree) {
  for (ShardSpec::On& on : placement.on) {
    auto* shard = std::get_if<Shard>(&on.placement);
    if (shard == nullptr || shard->grain == 1) continue;
    const std::int64_t grains = shape[static_cast<std::size_t>(shard->dim)] / shard->grain;
    if (grains < degree) shard->repeat = degree / static_cast<int>(grains);
  }
  return placement;
}

int replicas(const ShardSpec& placement, int degree) {
  for (const ShardSpec::On& on : placement.on) {
    if (const auto* shard = std::get_if<Shard>(&on.placement)) return shard->repeat;
  }
  return degree;
}

bool partial_grad(const ParameterInfo& info, const TensorSplit& split) {
  switch (info.meets) {
    case Meets::kRows:
      return split.sequence_parallel;
    case Meets::kShare:
      return true;
    case Meets::kAll:
      return false;
  }
  return false;
}

std::vector<std::int64_t> fitting_degrees(const ModelSpec& model) {
  std::vector<std::int64_t> fit;
  for (std::int64_t degree : divisors(model.heads)) {
    const bool kv = model.latent || model.kv_heads % degree == 0 || degree % model.kv_heads == 0;
    const bool wide = degree <= model.ffn && (!model.experts || degree <= model.experts->ffn);
    if (kv && wide && degree <= model.vocab) fit.push_back(degree);
  }
  return fit;
}

}  // namespace

Mesh mesh_of(int degree, int rank) {
  Mesh::Degrees degrees;
  degrees.fill(1);
  degrees[static_cast<std::size_t>(Axis::kTp)] = degree;
  degrees[static_cast<std::size_t>(Axis::kEtp)] = degree;
  return Mesh(degrees, rank);
}

TensorSplit tensor_split(const Plan& plan, int world_rank) {
  const Mesh mesh(plan.degrees, plan.axis_order, world_rank);
  return {mesh.degree(Axis::kTp), mesh.coord(Axis::kTp), plan.sequence_parallel};
}

std::vector<LocalParameter> local_parameters(const ModelSpec& model, const TensorSplit& split) {
  throw_if_any(check_split(model, split.degree));
  const Mesh mesh = mesh_of(split.degree, split.rank);
  std::vector<LocalParameter> list;
  for (ParameterInfo& info : parameters(model)) {
    info.placement = with_repeats(std::move(info.placement), info.shape, split.degree);
    LocalParameter& local = list.emplace_back();
    local.box = info.placement.boxes(info.shape, mesh).front();
    local.replicas = replicas(info.placement, split.degree);
    local.counted = split.rank % local.replicas == 0;
    local.partial_grad = local.replicas > 1 && partial_grad(info, split);
    local.info = std::move(info);
  }
  return list;
}

Problems set_trainable(std::vector<LocalParameter>& list,
                       const std::vector<std::string>& patterns) {
  std::vector<ParameterInfo> infos;
  for (const LocalParameter& local : list) infos.push_back(local.info);
  Problems problems = set_trainable(infos, patterns);
  for (std::size_t i = 0; i < list.size(); ++i) list[i].info.trainable = infos[i].trainable;
  return problems;
}

std::vector<LocalParameter> whole_parameters(std::vector<ParameterInfo> list) {
  std::vector<LocalParameter> locals;
  for (ParameterInfo& info : list) {
    LocalParameter& local = locals.emplace_back();
    local.box = {std::vector<std::int64_t>(info.shape.size(), 0), info.shape};
    local.info = std::move(info);
  }
  return locals;
}

Problems check_split(const ModelSpec& model, int degree) {
  Problems problems;
  const std::string hint = "degrees that fit: " + join(fitting_degrees(model), " ") +
                           "; to use more ranks, split the layers with pp";
  const auto refuse = [&](std::string what) {
    problems.push_back({"parallel.tp", std::move(what), hint});
  };
  if (model.heads % degree != 0) {
    refuse(fmt::format("tp = {} does not divide {} attention heads", degree, model.heads));
  }
  if (!model.latent && model.kv_heads % degree != 0 && degree % model.kv_heads != 0) {
    refuse(fmt::format("tp = {} neither divides {} key and value heads nor is a multiple of them",
                       degree, model.kv_heads));
  }
  if (degree > model.ffn) {
    refuse(fmt::format("tp = {} is more than intermediate_size = {}", degree, model.ffn));
  }
  if (model.experts && degree > model.experts->ffn) {
    refuse(fmt::format("tp = {} is more than an expert's width = {}", degree, model.experts->ffn));
  }
  if (degree > model.vocab) {
    refuse(fmt::format("tp = {} is more than vocab_size = {}", degree, model.vocab));
  }
  return problems;
}

}  // namespace quatrain
