// SPDX-License-Identifier: Apache-2.0
// quatrain plan: which geometry for this model, cluster and batch, and why.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/guard.h"
#include "apps/plan_text.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/planner/explain.h"

namespace quatrain::apps {
namespace {

using Json = nlohmann::ordered_json;

struct PlanOptions {
  std::string model, cluster, fix, why, objective = "time", dtype = "bfloat16", toml, batch, out;
  int gpus = 0, top = 5;
  std::int64_t seq = 0, tokens = 0;
  double efficiency = 1.0;
  bool explain = false, json = false;
};

Job job_of(const PlanOptions& options) {
  if (options.model.empty() || options.cluster.empty() || options.gpus < 1 || options.seq < 1 ||
      options.tokens < 1) {
    throw ConfigError("plan needs --model, --cluster, --gpus, --seq and --global-batch-tokens");
  }
  Job job;
  job.model = model_of(options.model);
  job.cluster = cluster(options.cluster);
  job.gpus = options.gpus;
  job.seq = options.seq;
  job.efficiency = options.efficiency;
  job.dtype = *dtype_from_name(options.dtype);
  if (options.tokens % options.seq != 0) {
    throw ConfigError(fmt::format("{} tokens a step are no whole number of sequences of {}; {} are",
                                  options.tokens, options.seq,
                                  (options.tokens / options.seq + 1) * options.seq));
  }
  job.global_batch = options.tokens / options.seq;
  return job;
}

SearchRequest request_of(const PlanOptions& options) {
  SearchRequest request;
  request.fixed = parse_fixed(options.fix);
  request.top = options.top;
  request.objective = options.objective == "memory" ? Objective::kMemory
                      : options.objective == "gpus" ? Objective::kGpus
                                                    : Objective::kTime;
  return request;
}

Json plan_json(const Job& job, const Geometry& geometry) {
  return Json::parse(to_json(to_plan(job, geometry)));
}

Json document(const Job& job, const SearchResult& result, double seconds) {
  Json plans = Json::array();
  for (const RankedPlan& plan : result.plans) {
    plans.push_back({{"plan", plan_json(job, plan.geometry)},
                     {"hash", hash(to_plan(job, plan.geometry))},
                     {"step_s", plan.estimate.step},
                     {"mfu", plan.estimate.mfu},
                     {"peak_bytes", static_cast<std::int64_t>(plan.estimate.memory.sum())},
                     {"why", why(job, plan)},
                     {"summary", to_string(plan.geometry)},
                     {"parts_s", parts_json(plan.estimate.parts)},
                     {"memory_bytes", memory_json(plan.estimate.memory)}});
  }
  Json refused = Json::array();
  for (const auto& [reason, refusal] : result.refused) {
    refused.push_back(
        {{"reason", reason}, {"count", refusal.count}, {"example", to_string(refusal.example)}});
  }
  return {{"plans", plans},
          {"refused", refused},
          {"evaluated", result.evaluated},
          {"seconds", seconds}};
}

void print_plans(Console& console, const Job& job, const SearchResult& result) {
  Table table({"plan", "step s", "tokens/s/gpu", "MFU %", "peak GiB"});
  for (const RankedPlan& plan : result.plans) {
    const Estimate& e = plan.estimate;
    table.add(
        {to_string(plan.geometry), fmt::format("{:.3f}", e.step),
         fmt::format("{:.0f}", static_cast<double>(job.global_batch * job.seq) / e.step / job.gpus),
         fmt::format("{:.1f}", 100 * e.mfu), fmt::format("{:.1f}", e.memory.sum() / (1 << 30))});
  }
  console.line(table.to_string());
}

void print_refused(Console& console, const SearchResult& result) {
  for (const auto& [reason, refusal] : result.refused) {
    console.line(fmt::format("refused {}: {} (as {})", with_commas(refusal.count), reason,
                             to_string(refusal.example)));
  }
}

int nothing_fits(Console& console, const Job& job, const SearchRequest& request,
                 const SearchResult& result) {
  const int needed = result.nearest ? fewest_gpus(job, request) : 0;
  console.line("nothing fits");
  print_refused(console, result);
  if (result.nearest) {
    console.line(
        fmt::format("nearest: {} takes {} of {}", to_string(result.nearest->geometry),
                    human_bytes(static_cast<std::int64_t>(result.nearest->estimate.memory.sum())),
                    human_bytes(static_cast<std::int64_t>(job.cluster.memory_bytes))));
  }
  if (needed > 0) console.line(fmt::format("needs at least {} of {}", needed, job.cluster.name));
  return needed;
}

// Why the plan of --why loses.
std::string loses(const Job& job, SearchRequest request, const RankedPlan& best,
                  const std::string& keys) {
  request.fixed = merged(request.fixed, parse_fixed(keys));
  request.top = 1;
  SearchResult result = search(job, request);
  if (result.plans.empty()) {
    request.must_fit = false;
    request.objective = Objective::kMemory;
    result = search(job, request);
  }
  if (result.plans.empty()) {
    std::string reasons;
    for (const auto& [reason, refusal] : result.refused) reasons += "; " + reason;
    return keys + ": no such plan" + reasons;
  }
  const RankedPlan& other = result.plans.front();
  return fmt::format("{} ({}): {}", keys, to_string(other.geometry), why_not(job, best, other));
}

int run(const PlanOptions& options) {
  Console console(options.json);
  if (!options.batch.empty()) {
    if (options.out.empty()) throw ConfigError("--batch needs --out");
    const int bad = answer_batch(options.batch, options.out);
    console.line(fmt::format("answers in {}; {} bad rows", options.out, bad));
    return bad > 0 ? kCheckSaidNo : kDone;
  }
  Job job = job_of(options);
  const SearchRequest request = request_of(options);
  const auto begin = std::chrono::steady_clock::now();
  if (request.objective == Objective::kGpus) {
    job.gpus = std::max(1, fewest_gpus(job, request));
    console.line(fmt::format("fewest that fit: {}", job.gpus));
  }
  const SearchResult result = search(job, request);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  Json json = document(job, result, took.count());
  if (result.plans.empty()) {
    json["needs_at_least"] = nothing_fits(console, job, request, result);
    console.document(json);
    return kCheckSaidNo;
  }
  print_plans(console, job, result);
  console.line(
      fmt::format("{} plans evaluated in {:.2f} s", with_commas(result.evaluated), took.count()));
  if (options.explain) {
    for (const std::string& text : explain(job, result)) console.line(text);
    print_refused(console, result);
  }
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

}  // namespace

Registered add_plan(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("plan", "Which geometry for a model, cluster and batch");
  auto o = std::make_shared<PlanOptions>();
  parser->add_option("--model", o->model, "catalogue entry, Hugging Face folder or config.json");
  parser->add_option("--cluster", o->cluster, "catalogue entry or file");
  parser->add_option("--gpus", o->gpus, "accelerators");
  parser->add_option("--seq", o->seq, "tokens of a sequence");
  parser->add_option("--global-batch-tokens", o->tokens, "tokens of a step");
  parser->add_option("--top", o->top, "plans to show")->check(CLI::Range(1, 1000));
  parser->add_option("--fix", o->fix, "what is decided: tp=8,pp=1");
  parser->add_option("--why", o->why, "why a plan with these degrees loses: tp=4,pp=4");
  parser->add_option("--objective", o->objective, "what is least")
      ->check(CLI::IsMember({"time", "memory", "gpus"}))
      ->capture_default_str();
  parser->add_option("--dtype", o->dtype, "of computation")
      ->check(CLI::IsMember({"bfloat16", "float32"}))
      ->capture_default_str();
  parser->add_option("--efficiency", o->efficiency, "of a software stack, against the model's")
      ->check(CLI::Range(0.01, 10.0))
      ->capture_default_str();
  parser->add_option("--toml", o->toml, "writes the best plan as a configuration of train");
  parser->add_option("--batch", o->batch, "CSV of questions, a row each");
  parser->add_option("--out", o->out, "CSV of answers");
  parser->add_flag("--explain", o->explain, "why this plan, and what was refused");
  parser->add_flag("--json", o->json, "one JSON document on stdout, the rest on stderr");
  parser->footer(
      "Examples:\n  quatrain plan --model llama-3.1-405b --cluster h100-sxm-80gb --gpus 16384 "
      "--seq 8192 --global-batch-tokens 16777216 --explain\n"
      "  quatrain plan --batch rows.csv --out answers.csv");
  return {parser, [o] { return run(*o); }};
}

}  // namespace quatrain::apps
