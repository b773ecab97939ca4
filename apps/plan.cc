// SPDX-License-Identifier: Apache-2.0
// quatrain plan: which geometry for this model, cluster and batch, and why.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/csv.h"
#include "apps/guard.h"
#include "apps/plan_text.h"
#include "apps/sweep_chart.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/planner/explain.h"
#include "quatrain/spec/model_io.h"

namespace quatrain::apps {
namespace {

using Json = nlohmann::ordered_json;

struct PlanOptions {
  std::string model, cluster, fix, why, sweep, objective = "time", dtype = "bfloat16";
  std::string toml, batch, out, svg;
  int gpus = 0, top = 5;
  std::int64_t seq = 0, tokens = 0;
  double efficiency = 1.0, expert_imbalance = 1.0, critical_batch = 0.0, tokens_per_second = 0.0;
  bool explain = false, json = false;
};

Job job_of(const PlanOptions& options) {
  const bool counts = options.objective == "gpus" || options.gpus > 0;
  if (options.model.empty() || options.cluster.empty() || !counts || options.seq < 1 ||
      options.tokens < 1) {
    throw ConfigError("plan needs --model, --cluster, --gpus, --seq and --global-batch-tokens");
  }
  if (options.tokens % options.seq != 0) {
    const std::int64_t below = options.tokens / options.seq * options.seq;
    throw ConfigError(
        fmt::format("--global-batch-tokens {} is no whole number of sequences of {}; nearest: {}{}",
                    options.tokens, options.seq, below > 0 ? fmt::format("{} or ", below) : "",
                    below + options.seq));
  }
  Job job;
  job.model = find_model(options.model);
  job.cluster = cluster(options.cluster);
  job.gpus = options.gpus;
  job.seq = options.seq;
  job.global_batch = options.tokens / options.seq;
  job.efficiency = options.efficiency;
  job.expert_imbalance = options.expert_imbalance;
  set_dtype(job, options.dtype);
  return job;
}

SearchRequest request_of(const PlanOptions& options) {
  SearchRequest request;
  request.fixed = parse_fixed(options.fix);
  request.top = options.top;
  if (options.objective == "memory") request.objective = Objective::kMemory;
  return request;
}

Json document(const Job& job, const SearchResult& result, double seconds) {
  Json plans = Json::array();
  for (const RankedPlan& plan : result.plans) plans.push_back(plan_json(job, plan));
  Json refused = Json::array();
  for (const auto& [reason, refusal] : result.refused) {
    refused.push_back({{"reason", reason},
                       {"count", refusal.count},
                       {"example", {{"summary", to_string(refusal.example)}}}});
  }
  return {{"plans", plans},
          {"refused", refused},
          {"gpus", job.gpus},
          {"evaluated", result.evaluated},
          {"dominated", result.dominated},
          {"seconds", seconds}};
}

void print_plans(Console& console, const Job& job, const SearchResult& result) {
  Table table({"plan", "step s", "tokens/s", "a GPU", "MFU %", "peak GiB"});
  constexpr double kGib = 1 << 30;
  for (const RankedPlan& plan : result.plans) {
    const Estimate& e = plan.estimate;
    const double rate = tokens_per_second(job, e);
    table.add({to_string(plan.geometry), fmt::format("{:.4g}", e.step),
               with_commas(static_cast<std::int64_t>(rate)), fmt::format("{:.0f}", rate / job.gpus),
               fmt::format("{:.1f}", 100 * e.mfu), fmt::format("{:.1f}", e.memory.sum() / kGib)});
  }
  std::string text = table.to_string();
  text.pop_back();
  console.line(text);
  console.line("best: " + why(job, result.plans.front()));
}

void print_reasons(Console& console, const Job& job, const SearchResult& result,
                   double critical_batch) {
  console.line("why this one, in the order of the golden rule:");
  for (const std::string& text : explain(job, result, critical_batch)) console.line("  " + text);
  if (!result.refused.empty()) console.line("refused:");
  for (const auto& [reason, refusal] : result.refused) {
    console.line(fmt::format("  {} x {}, as {}", with_commas(refusal.count), reason,
                             to_string(refusal.example)));
  }
}

// Says what would fit, and returns it.
Json nothing_fits(Console& console, const Job& job, const SearchRequest& request,
                  const SearchResult& result) {
  console.line(fmt::format("nothing fits on {} x {}: {}", job.gpus, job.cluster.name,
                           why_nothing(job, result)));
  const std::optional<int> fewest = fewest_gpus(job, request);
  if (!fewest) {
    console.line("needs at least more than 65,536 accelerators, or other keys in --fix");
    return nullptr;
  }
  Job larger = job;
  larger.gpus = *fewest;
  SearchRequest one = request;
  one.top = 1;
  const SearchResult nearest = search(larger, one);
  console.line(
      fmt::format("needs at least {}: {}", *fewest, to_string(nearest.plans.front().geometry)));
  return *fewest;
}

// The best of the plans that have what `text` fixes as well, fitting or not.
std::string loses(const Job& job, SearchRequest request, const RankedPlan& best,
                  const std::string& text) {
  request.fixed = merged(request.fixed, parse_fixed(text));
  request.top = 1;
  SearchResult result = search(job, request);
  if (result.plans.empty()) {
    request.must_fit = false;
    request.objective = Objective::kMemory;
    result = search(job, request);
  }
  if (result.plans.empty()) return text + ": " + why_nothing(job, result);
  const RankedPlan& other = result.plans.front();
  return to_string(other.geometry) + ": " + why_not(job, best, other);
}

// One line a value of "tp=1,2,4,8": the best plan that has it.
int sweep(const PlanOptions& options, const Job& job, Console& console) {
  const std::size_t equals = options.sweep.find('=');
  if (equals == std::string::npos) throw ConfigError("--sweep takes axis=values, as tp=1,2,4,8");
  const std::string axis = options.sweep.substr(0, equals);
  const CsvRow values = parse_csv(options.sweep.substr(equals + 1) + "\n").at(0);
  std::string csv = csv_line({axis, "step_s", "tokens_per_s_per_gpu", "mfu", "peak_gib", "plan"});
  Json rows = Json::array();
  std::vector<SweepPoint> points;
  for (const std::string& value : values) {
    SearchRequest request = request_of(options);
    request.fixed = merged(request.fixed, parse_fixed(axis + "=" + value));
    request.top = 1;
    const SearchResult result = search(job, request);
    if (result.plans.empty()) {
      csv += csv_line({value, "", "", "", "", why_nothing(job, result)});
      continue;
    }
    const RankedPlan& plan = result.plans.front();
    const Estimate& e = plan.estimate;
    csv += csv_line({value, fmt::format("{:.6g}", e.step),
                     fmt::format("{:.6g}", tokens_per_second(job, e) / job.gpus),
                     fmt::format("{:.4f}", e.mfu),
                     fmt::format("{:.3f}", e.memory.sum() / (1 << 30)), to_string(plan.geometry)});
    Json row = plan_json(job, plan);
    row[axis] = value;
    rows.push_back(row);
    points.push_back({value, plan});
  }
  if (!options.svg.empty()) write_file_atomically(options.svg, sweep_svg(job, axis, points));
  if (options.out.empty()) {
    csv.pop_back();
    console.line(csv);
  } else {
    write_file_atomically(options.out, csv);
    console.line("the sweep is in " + options.out);
  }
  console.document({{"sweep", rows}});
  return kDone;
}

int batch(const PlanOptions& options, Console& console) {
  if (options.out.empty()) throw ConfigError("--batch needs --out");
  const int bad = answer_batch(options.batch, options.out);
  console.line(fmt::format("answers in {}; {} bad rows", options.out, bad));
  console.document({{"out", options.out}, {"bad_rows", bad}});
  return bad > 0 ? kCheckSaidNo : kDone;
}

// --objective gpus: the count becomes the answer.
void count_gpus(const PlanOptions& options, Job& job, Console& console) {
  const std::optional<int> fewest =
      fewest_gpus(job, request_of(options), options.tokens_per_second);
  if (!fewest) return;
  job.gpus = *fewest;
  console.line(fmt::format("fewest that do: {}", *fewest));
}

int run(const PlanOptions& options) {
  Console console(options.json);
  if (!options.batch.empty()) return batch(options, console);
  Job job = job_of(options);
  const SearchRequest request = request_of(options);
  if (!options.sweep.empty()) return sweep(options, job, console);
  const auto begin = std::chrono::steady_clock::now();
  if (options.objective == "gpus") count_gpus(options, job, console);
  const SearchResult result = search(job, request);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  Json json = document(job, result, took.count());
  if (result.plans.empty()) {
    json["needs_at_least"] = nothing_fits(console, job, request, result);
    console.document(json);
    return kCheckSaidNo;
  }
  print_plans(console, job, result);
  console.line(fmt::format("{} plans estimated, {} more dominated, in {:.2f} s",
                           with_commas(result.evaluated), with_commas(result.dominated),
                           took.count()));
  if (options.explain) print_reasons(console, job, result, options.critical_batch);
  if (options.explain) json["explain"] = explain(job, result, options.critical_batch);
  if (!options.why.empty()) {
    json["why"] = loses(job, request, result.plans.front(), options.why);
    console.line(json["why"].get<std::string>());
  }
  if (!options.toml.empty()) {
    write_file_atomically(options.toml,
                          train_toml(job, options.model, result.plans.front().geometry));
  }
  console.document(json);
  return kDone;
}

void add_answers(CLI::App& parser, PlanOptions& o) {
  parser.add_option("--toml", o.toml, "writes the best plan as a configuration of train");
  parser.add_option("--batch", o.batch, "CSV of questions, a row each");
  parser.add_option("--sweep", o.sweep, "the best plan for each value: tp=1,2,4,8");
  parser.add_option("--out", o.out, "CSV of the answers to --batch or --sweep");
  parser.add_option("--svg", o.svg, "picture of the --sweep");
  parser.add_flag("--explain", o.explain, "why this plan, and what was refused");
  parser.add_flag("--json", o.json, "one JSON document on stdout, the rest on stderr");
}

}  // namespace

Registered add_plan(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("plan", "Which geometry for a model, cluster and batch");
  auto o = std::make_shared<PlanOptions>();
  parser->add_option("--model", o->model,
                     "catalogue entry, TOML, Hugging Face folder or config.json");
  parser->add_option("--cluster", o->cluster, "catalogue entry or TOML");
  parser->add_option("--gpus", o->gpus, "accelerators")->check(CLI::Range(1, 1'000'000));
  parser->add_option("--seq", o->seq, "tokens of a sequence");
  parser->add_option("--global-batch-tokens", o->tokens, "tokens of a step");
  parser->add_option("--top", o->top, "plans to show")->check(CLI::Range(1, 1000));
  parser->add_option("--fix", o->fix, "what is decided: tp=8,pp=1");
  parser->add_option("--why", o->why, "why a plan with these degrees loses: tp=4,pp=4");
  parser->add_option("--objective", o->objective, "what is least: time, memory, or gpus that do")
      ->check(CLI::IsMember({"time", "memory", "gpus"}))
      ->capture_default_str();
  parser->add_option("--tokens-per-second", o->tokens_per_second,
                     "what --objective gpus must reach");
  parser->add_option("--critical-batch", o->critical_batch, "in tokens, for --explain");
  parser->add_option("--dtype", o->dtype, "bfloat16, float32 or fp8")->capture_default_str();
  parser->add_option("--efficiency", o->efficiency, "of a software stack, against the catalogue's")
      ->check(CLI::Range(0.01, 10.0))
      ->capture_default_str();
  parser
      ->add_option("--expert-imbalance", o->expert_imbalance,
                   "time of experts: rows of the rank of ep that gets most, over the mean")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  add_answers(*parser, *o);
  parser->footer(
      "Examples:\n  quatrain plan --model llama-3.1-405b --cluster h100-sxm-80gb --gpus 16384 "
      "--seq 8192 --global-batch-tokens 16777216 --explain\n"
      "  quatrain plan --batch rows.csv --out answers.csv");
  return {parser, [o] { return run(*o); }};
}

}  // namespace quatrain::apps
