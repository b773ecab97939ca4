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

Box empty_box(std::size_t dims) {
  return {std::vector<std::int64_t>(dims, 0), std::vector<std::int64_t>(dims, 0)};
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
    if (kv && degree <= model.ffn && degree <= model.vocab) fit.push_back(degree);
  }
  return fit;
}

Problems check_experts(const Experts& experts, const TensorSplit& split) {
  Problems problems;
  const auto [ep, ep_rank, etp, etp_rank] = split.expert_split();
  if (experts.num_experts % ep != 0) {
    problems.push_back({"parallel.ep",
                        fmt::format("ep = {} does not divide {} experts", ep, experts.num_experts),
                        "degrees that fit: " + join(divisors(experts.num_experts), " ")});
  }
  if (etp > experts.ffn) {
    problems.push_back(
        {"parallel.etp",
         fmt::format("etp = {} is more than an expert's width = {}", etp, experts.ffn),
         "keep experts whole: etp = 1, and a larger ep"});
  }
  if (split.degree % etp != 0 && etp % split.degree != 0) {
    problems.push_back(
        {"parallel.etp",
         fmt::format("etp = {} neither divides tp = {} nor is a multiple of it", etp, split.degree),
         fmt::format("degrees that fit: {}, and multiples of {}", join(divisors(split.degree), " "),
                     split.degree)});
  }
  return problems;
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
  return {mesh.degree(Axis::kTp), mesh.coord(Axis::kTp), plan.sequence_parallel,
          ExpertSplit{mesh.degree(Axis::kEp), mesh.coord(Axis::kEp), mesh.degree(Axis::kEtp),
                      mesh.coord(Axis::kEtp)}};
}

std::vector<LocalParameter> local_parameters(const ModelSpec& model, const TensorSplit& split) {
  return local_parameters(model, split, [](std::int64_t) { return true; });
}

std::vector<LocalParameter> local_parameters(const ModelSpec& model, const TensorSplit& split,
                                             const WantedBlock& wanted) {
  throw_if_any(check_split(model, split));
  const ExpertSplit experts = split.expert_split();
  const Mesh dense = mesh_of(split.degree, split.rank);
  const Mesh of_expert = mesh_of(experts.etp, experts.etp_rank);
  std::vector<LocalParameter> list;
  for (ParameterInfo& info : parameters(model, wanted)) {
    const Mesh& mesh = info.expert < 0 ? dense : of_expert;
    const int degree = mesh.degree(Axis::kTp);
    info.placement = with_repeats(std::move(info.placement), info.shape, degree);
    LocalParameter& local = list.emplace_back();
    const bool held = info.expert < 0 || experts.holds(info.expert, model.experts->num_experts);
    local.box =
        held ? info.placement.boxes(info.shape, mesh).front() : empty_box(info.shape.size());
    local.replicas = replicas(info.placement, degree);
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

Problems check_split(const ModelSpec& model, const TensorSplit& split) {
  const int degree = split.degree;
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
  if (degree > model.vocab) {
    refuse(fmt::format("tp = {} is more than vocab_size = {}", degree, model.vocab));
  }
  if (model.experts) {
    for (Problem& problem : check_experts(*model.experts, split)) {
      problems.push_back(std::move(problem));
    }
  }
  return problems;
}

}  // namespace quatrain
