// SPDX-License-Identifier: Apache-2.0
// quatrain simulate: one configuration's step on a cluster: time by part, memory, timeline.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/guard.h"
#include "apps/plan_text.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/cost/lower.h"
#include "quatrain/cost/stage_cut.h"
#include "quatrain/cost/wire.h"
#include "quatrain/cost/zero.h"
#include "quatrain/planner/explain.h"
#include "quatrain/schedule/picture.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {
namespace {

using Json = nlohmann::ordered_json;

struct SimulateOptions {
  std::string config, cluster, model, trace, svg;
  std::vector<std::string> overrides;
  double expert_imbalance = 1.0;
  bool json = false;
};

// What is simulated: a model, a plan, and what the model trains.
struct Simulated {
  ModelSpec model;
  Plan plan;
  std::vector<std::string> trainable;
  bool global_balance = false;  // WorkShape's
  WorkShape work(int rank) const {
    WorkShape shape = work_shape(plan, rank);
    shape.trainable = trainable;
    shape.global_balance = global_balance;
    return shape;
  }
};

Simulated read_plan_file(const SimulateOptions& options) {
  if (options.model.empty()) throw ConfigError("a plan file says nothing of the model: --model M");
  return {find_model(options.model), plan_from_json(read_file(options.config)), {}, false};
}

// What the runtime does not have yet has a cost all the same; data may be missing too.
bool matters(const Problem& problem) {
  return problem.what.find("not supported yet") == std::string::npos;
}

Simulated read_config(const SimulateOptions& options) {
  RunConfigResult read = read_run_config(options.config, options.overrides);
  std::erase_if(read.problems, [](const Problem& p) { return !matters(p); });
  throw_if_any(read.problems);
  balance_stages(read.config);
  const auto& training = read.config.training;
  return {read.config.model, make_plan(read.config), training.trainable,
          training.router_balance == "global_batch"};
}

// Ranks at the first place along all axes but pp and, where its ranks' tokens differ, cp. Others
// send no more, but for the odd rows of a ZeRO shard; train --dry-run asks every rank.
std::vector<int> telling_ranks(const Plan& plan) {
  const Mesh mesh(plan.degrees, plan.axis_order, 0);
  if (context_split(plan, 0).even(plan.seq_len)) return mesh.group(Axis::kPp);
  return mesh.group({Axis::kPp, Axis::kCp});
}

// Of each entry the most that a rank sends in a step, as a run's metrics have it.
Json wire_json(const Simulated& run) {
  Json json = Json::object();
  const Schedule schedule = lowered_schedule(run.model, run.plan, run.trainable);
  WireCosts most;
  for (const int rank : telling_ranks(run.plan)) {
    const ZeroShape shape =
        zero_shape(run.model, run.plan, run.trainable, rank, schedule.rank_of_stage.front());
    const auto& row = schedule.per_rank[static_cast<std::size_t>(shape.mesh.coord(Axis::kPp))];
    keep_most(most, step_wire(row, run.model, run.work(rank), shape));
  }
  for (const auto& [group, operations] : most) {
    for (const auto& [operation, cost] : operations) json[group][operation] = cost.bytes.value;
  }
  return json;
}

// Of one micro-batch through the whole model, on one rank of tp.
Json flops_json(const Simulated& run) {
  Flops forward{}, input{}, weight{};
  for (const UnitCost& unit : walk(run.model, run.work(0))) {
    forward += unit.forward();
    input += unit.backward_input();
    weight += unit.backward_weight();
  }
  return {{"forward", forward.value},
          {"backward_input", input.value},
          {"backward_weight", weight.value}};
}

std::vector<std::int64_t> blocks_of_stages(const Simulated& run) {
  std::vector<std::int64_t> blocks;
  const std::vector<int>& begin = run.plan.stage_begin;
  for (std::size_t stage = 0; stage < begin.size(); ++stage) {
    const std::int64_t end = stage + 1 < begin.size() ? begin[stage + 1] : run.model.layers;
    blocks.push_back(end - begin[stage]);
  }
  return blocks;
}

void print(Console& console, const Job& job, const RankedPlan& plan) {
  const Estimate& e = plan.estimate;
  console.line(to_string(plan.geometry));
  console.line(fmt::format("step {:.4g} s  {} tok/s  mfu {:.1f} %", e.step,
                           with_commas(static_cast<std::int64_t>(tokens_per_second(job, e))),
                           100 * e.mfu));
  Table time({"part", "s", "%"});
  const Json parts = parts_json(e.parts), held = memory_json(e.memory);
  for (const auto& [name, seconds] : parts.items()) {
    const double s = seconds.get<double>();
    if (s > 0) time.add({name, fmt::format("{:.4g}", s), fmt::format("{:.1f}", 100 * s / e.step)});
  }
  Table memory({fmt::format("pipeline rank {}", e.memory.rank), "bytes"});
  for (const auto& [name, bytes] : held.items()) {
    if (name != "rank") memory.add({name, human_bytes(bytes.get<std::int64_t>())});
  }
  console.line(time.to_string() + memory.to_string() + (e.fits ? "fits" : "does not fit: ") +
               (e.fits ? "" : human_bytes(static_cast<std::int64_t>(job.cluster.memory_bytes))));
}

int run(const SimulateOptions& options) {
  Console console(options.json);
  const Simulated simulated =
      options.config.ends_with(".json") ? read_plan_file(options) : read_config(options);
  const Geometry g = geometry_of(simulated.plan);
  Job job;
  job.model = simulated.model;
  job.cluster = cluster(options.cluster);
  job.gpus = g.world();
  job.seq = simulated.plan.seq_len;
  job.global_batch = g.micro_batch * g.microbatches * g.dp();
  job.dtype = simulated.plan.dtype;
  job.expert_imbalance = options.expert_imbalance;
  Estimator estimator(job);
  const ClockedStep step = estimator.settled(g, blocks_of_stages(simulated));
  const Estimate& e = step.estimate;
  print(console, job, {g, e});
  if (!options.svg.empty()) write_file_atomically(options.svg, to_svg(step.timeline, to_string(g)));
  if (!options.trace.empty()) {
    write_file_atomically(options.trace, to_chrome_trace(step.timeline, {.us_per_unit = 1e6}));
  }
  Json json;
  json["step_s"] = e.step;
  json["parts_s"] = parts_json(e.parts);
  json["mfu"] = e.mfu;
  json["memory_bytes"] = memory_json(e.memory);
  json["comm_bytes"] = wire_json(simulated);
  json["flops"] = flops_json(simulated);
  json["fits"] = e.fits;
  console.document(json);
  return kDone;
}

}  // namespace

Registered add_simulate(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("simulate", "One configuration's step on a cluster");
  auto o = std::make_shared<SimulateOptions>();
  parser->add_option("config", o->config, "TOML, as for train, or a plan as JSON")->required();
  parser->add_option("overrides", o->overrides, "section.key=value ...");
  parser->add_option("--cluster", o->cluster, "catalogue entry or TOML")->required();
  parser->add_option("--model", o->model,
                     "of a plan: catalogue entry, TOML or Hugging Face folder");
  parser
      ->add_option("--expert-imbalance", o->expert_imbalance,
                   "time of experts: rows of the rank of ep that gets most, over the mean")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  parser->add_option("--trace", o->trace, "writes the timeline for a trace viewer");
  parser->add_option("--svg", o->svg, "writes the timeline as a picture");
  parser->add_flag("--json", o->json, "one JSON document on stdout, the rest on stderr");
  parser->footer("Example:\n  quatrain simulate run.toml --cluster h100-sxm-80gb --svg step.svg");
  return {parser, [o] { return run(*o); }};
}

}  // namespace quatrain::apps
