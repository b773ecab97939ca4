// SPDX-License-Identifier: Apache-2.0
#include "tests/zero/geometry_run.h"

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "quatrain/cost/lower.h"
#include "quatrain/spec/plan.h"

namespace quatrain {
namespace {

Plan make_plan(const Recipe& recipe, const Geometry& geometry) {
  Plan plan;
  plan.degrees[static_cast<std::size_t>(Axis::kDpReplicate)] = geometry.replicas;
  plan.degrees[static_cast<std::size_t>(Axis::kDpShard)] = geometry.shards;
  plan.degrees[static_cast<std::size_t>(Axis::kCp)] = geometry.context;
  plan.degrees[static_cast<std::size_t>(Axis::kTp)] = geometry.tensor;
  plan.cp_style = geometry.context_style;
  plan.cp_heads = geometry.context_heads;
  plan.cp_zigzag = geometry.zigzag;
  if (recipe.spec.experts) {
    const int etp = geometry.etp > 0 ? geometry.etp : geometry.tensor;
    const int copies =
        geometry.data_ranks() * geometry.context * geometry.tensor / (geometry.ep * etp);
    const int replicas = std::gcd(geometry.replicas, copies);
    plan.degrees[static_cast<std::size_t>(Axis::kEdpReplicate)] = replicas;
    plan.degrees[static_cast<std::size_t>(Axis::kEdpShard)] = copies / replicas;
    plan.degrees[static_cast<std::size_t>(Axis::kEp)] = geometry.ep;
    plan.degrees[static_cast<std::size_t>(Axis::kEtp)] = etp;
  }
  plan.sequence_parallel = geometry.sequence_parallel;
  plan.gather_again = geometry.gather_again;
  plan.overlap_chunks = geometry.overlap_chunks;
  plan.ep_chunks = geometry.ep_chunks;
  plan.zero_stage = geometry.zero_stage;
  plan.prefetch = geometry.prefetch;
  plan.reduce_once = geometry.reduce_once;
  plan.gather_once = geometry.gather_once;
  plan.dtype = recipe.dtype;
  plan.recompute = recipe.recompute;
  plan.schedule = geometry.schedule;
  plan.degrees[static_cast<std::size_t>(Axis::kPp)] = geometry.pipeline;
  plan.chunks = geometry.chunks;
  plan.stage_begin = first_layers(
      geometry.layers.empty() ? even_layers(recipe.spec.layers, geometry.pipeline * geometry.chunks)
                              : geometry.layers);
  const std::int64_t at_once = std::int64_t{geometry.data_ranks()} * geometry.accumulation;
  plan.microbatch_size = (recipe.global_batch + at_once - 1) / at_once;
  const std::int64_t of_a_microbatch = plan.microbatch_size * geometry.data_ranks();
  plan.num_microbatches = (recipe.global_batch + of_a_microbatch - 1) / of_a_microbatch;
  return plan;
}

BuildOptions build_options(const Recipe& recipe) {
  return {.dtype = scalar_type(recipe.dtype),
          .recompute = recipe.recompute,
          .trainable = recipe.trainable,
          .head_chunk_tokens = kHeadChunk,
          .router = recipe.router};
}

SyntheticOptions data_options(const Recipe& recipe, const Plan& plan, int world_rank) {
  const Mesh mesh(plan.degrees, plan.axis_order, world_rank);
  const AxisSet data = AxisSet(Axis::kDpReplicate) | Axis::kDpShard;
  SyntheticOptions options;
  options.vocab = recipe.spec.vocab;
  options.seq = recipe.seq;
  options.global_batch = recipe.global_batch;
  options.microbatch_size = plan.microbatch_size;
  options.dp_rank = mesh.coord(data);
  options.dp_size = mesh.degree(data);
  options.trained = recipe.trained;
  options.document_tokens = recipe.document_tokens;
  return options;
}

RankJobOptions job_options(const Recipe& recipe, const Geometry& geometry) {
  RankJobOptions options{.spec = recipe.spec,
                         .plan = make_plan(recipe, geometry),
                         .build = build_options(recipe),
                         .optimizer = recipe.optimizer,
                         .executor = {.lr = recipe.optimizer.lr,
                                      .max_norm = recipe.optimizer.max_norm,
                                      .z_loss = recipe.z_loss,
                                      .router_z_loss = recipe.router_z_loss,
                                      .router_bias_rate = recipe.router_bias_rate,
                                      .seed = 3,
                                      .trace = true},
                         .init_seed = 11};
  if (recipe.start) {
    options.fill = [start = recipe.start, seed = options.init_seed](Model&, ZeroUnits& units,
                                                                    Communicator&) {
      units.initialise(seed);
      for (const UnitShard& shard : units.shards()) {
        for (const ShardPart& part : parts(shard)) {
          start(part.param->info, shard.value.narrow(0, part.value_begin, part.numel), part.first);
        }
      }
      units.gather_kept_values();
    };
  }
  options.schedule = lowered_schedule(recipe.spec, options.plan, recipe.trainable);
  return options;
}

}  // namespace

std::string Geometry::name() const {
  if (pipeline > 1) {
    Geometry stage = *this;
    stage.pipeline = 1;
    return fmt::format("pp {} x {} {}, {}", pipeline, chunks, schedule, stage.name());
  }
  if (context > 1) {
    Geometry whole = *this;
    whole.context = 1;
    return fmt::format("cp {} {}{}{}, {}", context, context_style,
                       context_heads > 1 ? fmt::format(" x {} heads", context_heads) : "",
                       zigzag ? "" : " contiguous", whole.name());
  }
  if (ep > 1 || etp > 0) {
    Geometry dense = *this;
    dense.ep = 1;
    dense.etp = 0;
    dense.ep_chunks = 1;
    return fmt::format("ep {} etp {}{}, {}", ep, etp,
                       ep_chunks > 1 ? fmt::format(" in {} pieces", ep_chunks) : "", dense.name());
  }
  if (tensor > 1) {
    Geometry data = *this;
    data.tensor = 1;
    return fmt::format("tp {}{}{}{}, {}", tensor, sequence_parallel ? " with SP" : "",
                       gather_again ? ", gathered again" : "",
                       overlap_chunks > 1 ? fmt::format(", {} chunks", overlap_chunks) : "",
                       data.name());
  }
  return fmt::format("zero {} on {} x {} ranks, accumulation {}, prefetch {}{}", zero_stage,
                     replicas, shards, accumulation, prefetch, reduce_once ? ", reduced once" : "");
}

GeometryJob::GeometryJob(const Recipe& recipe, const Geometry& geometry, Communicator& world)
    : GeometryData{SyntheticLoader(
          data_options(recipe, make_plan(recipe, geometry), world.rank()))},
      RankJob(job_options(recipe, geometry), data, world) {}

Side side_of(const Recipe& recipe, const Geometry& geometry) {
  Side side;
  side.job = job_options(recipe, geometry);
  side.data = [recipe, plan = side.job.plan](const Mesh& mesh) {
    return std::make_unique<SyntheticLoader>(data_options(recipe, plan, mesh.rank()));
  };
  return side;
}

RunResult run_geometry(const Recipe& recipe, const Geometry& geometry, Communicator& world) {
  GeometryJob job(recipe, geometry, world);
  RunResult result;
  result.weights.push_back(whole_weights(job.units));
  for (int step = 1; step <= recipe.steps; ++step) {
    StepReport report = job.step(step);
    result.losses.push_back(report.loss);
    result.norms.push_back(report.grad_norm);
    result.routers.push_back(report.router);
    result.grads.push_back(whole_grads(job.units));
    result.weights.push_back(whole_weights(job.units));
    result.trace = std::move(report.trace);
  }
  return result;
}

RunResult run_on_threads(const Recipe& recipe, const Geometry& geometry) {
  return run_steps(side_of(recipe, geometry), recipe.steps);
}

Difference difference(const RunResult& got, const RunResult& want) {
  Difference worst;
  const auto note = [&](double error, const std::string& where) {
    if (!(error <= worst.max_rel)) worst = {error, where};
  };
  const auto note_router = [&](const RouterReport& a, const RouterReport& b,
                               const std::string& step) {
    note(relative_error(a.balance, b.balance), "balance loss" + step);
    note(relative_error(a.z, b.z), "router z-loss" + step);
    note(relative_error(a.entropy, b.entropy), "router entropy" + step);
    note(a.loads == b.loads ? 0.0 : 1.0, "loads of experts" + step);
    note(a.dropped == b.dropped ? 0.0 : 1.0, "dropped choices" + step);
  };
  for (std::size_t s = 0; s < want.losses.size(); ++s) {
    note(relative_error(got.losses.at(s), want.losses[s]), fmt::format("loss of step {}", s + 1));
    note(relative_error(got.norms.at(s), want.norms[s]), fmt::format("norm of step {}", s + 1));
    note_router(got.routers.at(s), want.routers[s], fmt::format(" of step {}", s + 1));
    const TensorError grad = compare(got.grads.at(s), want.grads[s]).front();
    note(grad.max_rel, fmt::format("gradient of {} at step {}", grad.name, s + 1));
  }
  for (std::size_t s = 0; s < want.weights.size(); ++s) {
    const TensorError weight = compare(got.weights.at(s), want.weights[s]).front();
    note(weight.max_rel, fmt::format("weight {} after step {}", weight.name, s));
  }
  return worst;
}

bool same_bits(const RunResult& a, const RunResult& b) {
  const auto same = [](const NamedTensors& x, const NamedTensors& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const auto& p, const auto& q) {
      return p.first == q.first && at::equal(p.second, q.second);
    });
  };
  return a.losses == b.losses && a.norms == b.norms &&
         std::equal(a.weights.begin(), a.weights.end(), b.weights.begin(), b.weights.end(), same) &&
         std::equal(a.grads.begin(), a.grads.end(), b.grads.begin(), b.grads.end(), same);
}

}  // namespace quatrain
