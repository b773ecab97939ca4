// SPDX-License-Identifier: Apache-2.0
// quatrain verify: does this configuration's geometry compute what another does, by default one
// rank? Both run on threads of this process, each in turn.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/guard.h"
#include "apps/job.h"
#include "apps/ranks.h"
#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/verify/inject.h"
#include "quatrain/verify/verify.h"

namespace quatrain::apps {
namespace {

constexpr std::size_t kRowsShown = 10;

struct VerifyCommand {
  std::string config;
  std::vector<std::string> overrides;
  std::vector<std::string> against;
  std::string dtype = "float64";
  std::string inject;
  int steps = 3;
  int ranks = 0;
  bool json = false;
};

std::vector<std::string> words_of(const std::vector<std::string>& texts) {
  std::vector<std::string> words;
  for (const std::string& text : texts) {
    std::istringstream in(text);
    for (std::string word; in >> word;) words.push_back(word);
  }
  return words;
}

// The micro-batches that a rank runs follow from the global batch, which stays.
RunConfig with_batch_of(RunConfig config, const RunConfig& subject) {
  auto& training = config.training;
  training.global_batch = subject.training.global_batch;
  const auto& parallel = config.parallel;
  const std::int64_t at_once =
      training.micro_batch * parallel.dp_replicate * std::int64_t{parallel.dp_shard};
  training.accumulation = (training.global_batch + at_once - 1) / at_once;
  throw_if_any(check(config));
  return config;
}

RunConfig one_rank(const RunConfig& subject) {
  RunConfig config = subject;
  config.parallel = {};
  config.training.recompute = Recompute::kNone;
  return with_batch_of(std::move(config), subject);
}

// The subject's configurations and those it is compared with.
class Configs {
 public:
  explicit Configs(const VerifyCommand& options) : options_(options) {
    subject = load({}, options.ranks);
    if (subject.data.train.empty()) {
      throw ConfigError(options.config +
                        ": data.train is empty; give [data] train = [{ path = ... }]");
    }
    const std::vector<std::string> against = words_of(options.against);
    reference = against.empty() ? one_rank(subject) : with_batch_of(changed(against), subject);
  }

  std::optional<RunConfig> without(Axis axis) const {
    try {
      std::vector<std::string> changes = {fmt::format("parallel.{}=1", name(axis))};
      if (axis == Axis::kPp) {
        changes.insert(changes.end(), {"parallel.schedule=1f1b", "parallel.chunks=1",
                                       "parallel.layers_per_stage=[]"});
      }
      if (axis == Axis::kTp && subject.model.experts) changes.emplace_back("parallel.etp=1");
      return with_batch_of(changed(changes), subject);
    } catch (const ConfigError&) {
      return std::nullopt;
    }
  }

  RunConfig subject;
  RunConfig reference;

 private:
  // Of the subject, with changes on top of the user's own.
  RunConfig changed(const std::vector<std::string>& more) const {
    std::vector<std::string> overrides = {
        fmt::format("training.micro_batch={}", subject.training.micro_batch),
        "training.accumulation=0", "training.global_batch=0",
        fmt::format("parallel.dp_shard={}", subject.parallel.dp_shard)};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return load(overrides, 0);
  }
  RunConfig load(const std::vector<std::string>& more, int ranks) const {
    std::vector<std::string> overrides = options_.overrides;
    overrides.push_back("training.dtype=" + options_.dtype);
    overrides.insert(overrides.end(), more.begin(), more.end());
    return load_config(options_.config, overrides, ranks);
  }
  const VerifyCommand& options_;
};

// `tokenizer` outlives it.
Side side_of(const RunConfig& config, const Tokenizer* tokenizer) {
  Side side;
  side.job = rank_job_options(config);
  side.job.executor.trace = false;
  side.threads = threads_of(config, side.mesh().world_size());
  side.lr_factor = [schedule = lr_schedule_of(config)](std::int64_t step) {
    return lr_factor(schedule, static_cast<double>(step));
  };
  side.data = [config, tokenizer](const Mesh& mesh) {
    const AxisSet data = AxisSet(Axis::kDpReplicate) | Axis::kDpShard;
    return make_train_loader(
        sources_of(config.data.train, config, tokenizer, true),
        loader_options(config, tokenizer, mesh.coord(data), mesh.degree(data)));
  };
  return side;
}

// "dp_shard 2 x tp 2, zero 1, sequence_parallel, 4 x 2 sequences a rank"
std::string geometry(const RunConfig& config) {
  const Plan plan = make_plan(config);
  const Mesh mesh(plan.degrees, plan.axis_order, 0);
  std::vector<std::string> degrees;
  for (const Axis axis : mesh.order()) {
    if (mesh.degree(axis) > 1)
      degrees.push_back(fmt::format("{} {}", name(axis), mesh.degree(axis)));
  }
  for (const Axis axis : {Axis::kEp, Axis::kEtp}) {
    if (config.model.experts && mesh.degree({Axis::kEp, Axis::kEtp}) > 1) {
      degrees.push_back(fmt::format("{} {}", name(axis), mesh.degree(axis)));
    }
  }
  if (degrees.empty()) degrees.emplace_back("one rank");
  std::string text = fmt::format("{}, zero {}", join(degrees, " x "), plan.zero_stage);
  if (mesh.degree(Axis::kPp) > 1) text += ", " + plan.schedule;
  if (plan.chunks > 1) text += fmt::format(", {} chunks", plan.chunks);
  if (plan.sequence_parallel) text += ", sequence_parallel";
  if (plan.recompute != Recompute::kNone)
    text += fmt::format(", recompute {}", name(plan.recompute));
  return text +
         fmt::format(", {} x {} sequences a rank", plan.num_microbatches, plan.microbatch_size);
}

std::string title(const VerifyRow& row) {
  const bool tensor = row.kind == Observed::kGradient || row.kind == Observed::kWeight;
  if (row.kind == Observed::kRouter) return row.tensor;
  return tensor ? fmt::format("{} of {}", name(row.kind), row.tensor) : std::string(name(row.kind));
}

void print(const VerifyReport& report, const std::string& dtype, Console& console) {
  if (report.equal()) {
    console.line(
        fmt::format("equal: {} steps in {}, {} tensors; the worst is the {} at step {}: "
                    "{:.1e} relative, {:.1e} allowed",
                    report.steps, dtype, report.rows.size(), title(report.rows.front()),
                    report.rows.front().step, report.max_rel, report.tolerance));
    return;
  }
  Table table({"kind", "tensor", "step", "relative error", "allowed"});
  for (std::size_t i = 0; i < std::min(kRowsShown, report.rows.size()); ++i) {
    const VerifyRow& row = report.rows[i];
    table.add({std::string(name(row.kind)), row.tensor, fmt::format("{}", row.step),
               fmt::format("{:.2e}", row.max_rel), fmt::format("{:.1e}", row.tolerance)});
  }
  console.line(table.to_string());
  const VerifyRow& first = report.first->row;
  console.line(fmt::format("different: first at step {}, the {}, {:.2e} relative in {}", first.step,
                           title(first), first.max_rel, dtype));
  console.line("hint: " + report.first->hint);
}

nlohmann::ordered_json to_json(const VerifyRow& row) {
  return {{"kind", name(row.kind)},
          {"tensor", row.tensor},
          {"step", row.step},
          {"max_rel", row.max_rel},
          {"tolerance", row.tolerance}};
}

nlohmann::ordered_json to_json(const VerifyReport& report, const std::string& dtype) {
  nlohmann::ordered_json document;
  document["equal"] = report.equal();
  document["dtype"] = dtype;
  document["steps"] = report.steps;
  document["tolerance"] = report.tolerance;
  document["max_rel"] = report.max_rel;
  document["first"] = nullptr;
  if (report.first) {
    nlohmann::ordered_json first = to_json(report.first->row);
    std::vector<std::string> axes;
    for (const AxisSet set : report.first->axes) axes.push_back(to_string(set));
    first["axis"] = nullptr;
    if (!axes.empty()) first["axis"] = axes.front();
    first["axes"] = axes;
    first["hint"] = report.first->hint;
    document["first"] = first;
  }
  document["tensors"] = nlohmann::ordered_json::array();
  for (const VerifyRow& row : report.rows) document["tensors"].push_back(to_json(row));
  return document;
}

Question question_of(const VerifyCommand& options, const Configs& configs,
                     const Tokenizer* tokenizer, const Injection& injection) {
  Question question;
  question.steps = options.steps;
  question.subject = side_of(configs.subject, tokenizer);
  question.reference = side_of(configs.reference, tokenizer);
  if (configs.reference.training.dtype != Dtype::kFloat64) {
    RunConfig exact = configs.reference;
    exact.training.dtype = Dtype::kFloat64;
    question.exact = side_of(exact, tokenizer);
  }
  question.subject.hooks = injection.hooks;
  question.without = [&configs, tokenizer,
                      hooks = injection.hooks](Axis axis) -> std::optional<Side> {
    const std::optional<RunConfig> config = configs.without(axis);
    if (!config) return std::nullopt;
    Side side = side_of(*config, tokenizer);
    side.hooks = hooks;
    return side;
  };
  return question;
}

int verify(const VerifyCommand& options) {
  if (launched_ranks(launch_of_this_process()) > 0) {
    throw ConfigError(
        "verify runs both geometries on threads of one process; start it without a "
        "launcher");
  }
  Console console(options.json);
  const Configs configs(options);
  const auto tokenizer = tokenizer_of(configs.subject);
  sources_of(configs.subject.data.train, configs.subject, tokenizer.get());  // ids are checked once
  Injection injection;
  if (!options.inject.empty()) injection = parse_injection(options.inject, configs.subject.model);
  const Question question = question_of(options, configs, tokenizer.get(), injection);
  console.line("verify    " + geometry(configs.subject));
  console.line("against   " + geometry(configs.reference));
  const VerifyReport report = quatrain::verify(question);
  if (injection.met && !*injection.met) {
    throw ConfigError(
        fmt::format("--inject {}: this geometry has nothing that it changes", options.inject));
  }
  print(report, options.dtype, console);
  console.document(to_json(report, options.dtype));
  return report.equal() ? kDone : kCheckSaidNo;
}

std::string help_of_faults() {
  std::string text = "--inject plants a fault in the configuration's side, to see verify see it:\n";
  for (const FaultKind& kind : fault_kinds()) {
    const std::string form =
        std::string(kind.name) + (kind.argument.empty() ? "" : "=") + std::string(kind.argument);
    text += fmt::format("  {:<26} {}\n", form, kind.help);
  }
  return text;
}

}  // namespace

Registered add_verify(CLI::App& app) {
  CLI::App* parser =
      app.add_subcommand("verify", "Compare a geometry with another, tensor by tensor");
  auto options = std::make_shared<VerifyCommand>();
  parser->add_option("config", options->config, "TOML file of the run")->required();
  parser->add_option("overrides", options->overrides, "section.key=value ...");
  parser
      ->add_option("--against", options->against,
                   "'section.key=value ...': the other side is the configuration with these "
                   "changes; default: one rank, ZeRO 0, no recomputation")
      ->take_all();
  parser->add_option("--steps", options->steps, "optimizer steps")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  parser->add_option("--dtype", options->dtype, "of both sides")
      ->check(CLI::IsMember({"float64", "float32", "bfloat16"}))
      ->capture_default_str();
  parser->add_option("--ranks", options->ranks, "ranks, where dp_shard = -1")
      ->check(CLI::Range(1, 1 << 24));
  parser->add_option("--inject", options->inject, "plants a fault, see below");
  parser->add_flag("--json", options->json, "one JSON document on stdout, the rest on stderr");
  parser->footer(help_of_faults() +
                 "\nExit code 0: equal, 1: different.\n\nExample:\n  quatrain verify "
                 "configs/demo.toml parallel.tp=2 parallel.sequence_parallel=true --steps 2");
  return {parser, [options] { return verify(*options); }};
}

}  // namespace quatrain::apps
