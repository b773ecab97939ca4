// SPDX-License-Identifier: Apache-2.0
// quatrain simulate: one configuration's step on a cluster: time by part, memory, timeline.
#include <fmt/format.h>

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
#include "quatrain/cost/wire.h"
#include "quatrain/cost/zero.h"
#include "quatrain/planner/explain.h"
#include "quatrain/schedule/picture.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {
namespace {

using Json = nlohmann::ordered_json;

struct SimulateOptions {
  std::string config, cluster, trace, svg;
  std::vector<std::string> overrides;
  bool json = false;
};

Geometry geometry_of(const RunConfig& config, const Plan& plan) {
  const RunConfig::Parallel& p = config.parallel;
  Geometry g;
  g.dp_replicate = p.dp_replicate;
  g.dp_shard = p.dp_shard;
  g.zero = p.zero;
  g.tp = p.tp;
  g.cp = p.cp;
  g.pp = p.pp;
  g.chunks = p.chunks;
  g.ep = p.ep;
  g.etp = p.etp;
  g.sequence_parallel = p.sequence_parallel;
  g.micro_batch = plan.microbatch_size;
  g.microbatches = plan.num_microbatches;
  g.recompute = plan.recompute;
  g.schedule = p.schedule;
  return g;
}

// Of the fullest rank's row, as the runtime counts them; dense models only.
Json wire_json(const RunConfig& config, const Plan& plan) {
  if (config.model.experts || config.model.latent) return Json::object();
  const std::vector<std::string>& trainable = config.training.trainable;
  const Schedule schedule = lowered_schedule(config.model, plan, trainable);
  const ZeroShape shape =
      zero_shape(config.model, plan, trainable, 0, schedule.rank_of_stage.front());
  const WireCosts costs =
      step_wire(schedule.per_rank.front(), config.model, work_shape(plan, 0), shape);
  Json json = Json::object();
  for (const auto& [group, operations] : costs) {
    for (const auto& [operation, cost] : operations) json[group][operation] = cost.bytes.value;
  }
  return json;
}

Json flops_json(const RunConfig& config, const Plan& plan) {
  if (config.model.experts || config.model.latent) return Json::object();
  Flops forward{}, input{}, weight{};
  for (const UnitCost& unit : walk(config.model, work_shape(plan, 0))) {
    forward += unit.forward();
    input += unit.backward_input();
    weight += unit.backward_weight();
  }
  return {{"forward", forward.value},
          {"backward_input", input.value},
          {"backward_weight", weight.value}};
}

int run(const SimulateOptions& options) {
  Console console(options.json);
  RunConfigResult read = read_run_config(options.config, options.overrides);
  throw_if_any(read.problems);
  const RunConfig& config = read.config;
  const Plan plan = make_plan(config);
  Job job;
  job.model = config.model;
  job.cluster = cluster(options.cluster);
  job.seq = plan.seq_len;
  job.global_batch = config.training.global_batch;
  job.dtype = plan.dtype;
  const Geometry g = geometry_of(config, plan);
  job.gpus = g.world();
  LayerTable table(job);
  const ClockedStep step = clocked_step(job, table, g);
  const Estimate& e = step.estimate;
  console.line(to_string(g));
  console.line(why(job, {g, e}));
  console.line(fmt::format("step {:.4g} s  mfu {:.1f} %", e.step, 100 * e.mfu));
  if (!options.svg.empty()) write_file_atomically(options.svg, to_svg(step.timeline, to_string(g)));
  if (!options.trace.empty()) write_file_atomically(options.trace, to_chrome_trace(step.timeline));
  console.document({{"step_s", e.step},
                    {"parts_s", parts_json(e.parts)},
                    {"mfu", e.mfu},
                    {"memory_bytes", memory_json(e.memory)},
                    {"comm_bytes", wire_json(config, plan)},
                    {"flops", flops_json(config, plan)},
                    {"fits", e.fits}});
  return kDone;
}

}  // namespace

Registered add_simulate(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("simulate", "One configuration's step on a cluster");
  auto o = std::make_shared<SimulateOptions>();
  parser->add_option("config", o->config, "TOML, as for train")->required();
  parser->add_option("overrides", o->overrides, "section.key=value ...");
  parser->add_option("--cluster", o->cluster, "catalogue entry or file")->required();
  parser->add_option("--trace", o->trace, "writes the timeline for a trace viewer");
  parser->add_option("--svg", o->svg, "writes the timeline as a picture");
  parser->add_flag("--json", o->json, "one JSON document on stdout, the rest on stderr");
  parser->footer("Example:\n  quatrain simulate run.toml --cluster h100-sxm-80gb --svg step.svg");
  return {parser, [o] { return run(*o); }};
}

}  // namespace quatrain::apps
