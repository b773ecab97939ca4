// SPDX-License-Identifier: Apache-2.0
// quatrain generate: samples text from a run, a checkpoint or a Hugging Face folder.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/text.h"
#include "apps/weights.h"
#include "quatrain/base/error.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/decode.h"
#include "quatrain/engine/job.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/kernels/memory.h"
#include "quatrain/spec/tensor_split.h"

namespace quatrain::apps {
namespace {

struct GenerateCommand {
  std::string from;
  std::string tokenizer;
  TextRequest request;
  int tp = 1;
  int pp = 1;
  int threads = 0;  // 0: the cores over the ranks
  bool json = false;
};

RankJobOptions job_options(const WeightSource& source, const WeightOrigin& origin,
                           const GenerateCommand& options) {
  RankJobOptions job;
  job.spec = origin.spec;
  job.plan.degrees[static_cast<std::size_t>(Axis::kTp)] = options.tp;
  if (job.spec.experts) job.plan.degrees[static_cast<std::size_t>(Axis::kEtp)] = options.tp;
  job.plan.degrees[static_cast<std::size_t>(Axis::kPp)] = options.pp;
  job.plan.stage_begin = first_layers(even_layers(job.spec.layers, options.pp));
  job.schedule = gpipe(options.pp, 1);
  job.fill = fill_from(source);
  return job;
}

// On one of the ranks that hold the model: every one of them samples the same text.
std::string generate_on(Communicator& world, const WeightSource& source,
                        const GenerateCommand& options) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency()) / world.size();
  MemoryOwner memory;
  const RankThread prologue(
      {.threads = options.threads > 0 ? options.threads : std::max(1, cores), .memory = &memory});
  const WeightOrigin origin = origin_of(source);
  const auto tokenizer =
      open_tokenizer(options.tokenizer.empty() ? origin.tokenizer : options.tokenizer);
  RankModel holder(job_options(source, origin, options), world);
  TextRequest request = options.request;
  request.forward = [&](const Pass& pass) {
    return decode_forward(holder.model, holder.pipeline, holder.units.stage_ranks(), pass);
  };
  return generate_text(holder.model, *tokenizer, request);
}

// What keeps the model from being shared by these ranks.
void check_ranks(const ModelSpec& spec, const GenerateCommand& options) {
  Problems problems = check_split(spec, {.degree = options.tp});
  if (options.pp > spec.layers) {
    problems.push_back({"--pp", fmt::format("{} stages for {} layers", options.pp, spec.layers),
                        fmt::format("at most {}", spec.layers)});
  }
  throw_if_any(problems);
}

int generate(const GenerateCommand& options) {
  Console console(options.json);
  const WeightSource source = find_weight_source(options.from);
  check_ranks(origin_of(source).spec, options);
  std::string text;
  run_thread_ranks(options.tp * options.pp, {}, [&](std::unique_ptr<Communicator> world) {
    std::string own = generate_on(*world, source, options);
    if (world->rank() == 0) text = std::move(own);
  });
  if (!options.json) console.line(printable(text));
  nlohmann::ordered_json document;
  document["prompt"] = options.request.prompt;
  document["text"] = text;
  console.document(document);
  return 0;
}

}  // namespace

Registered add_generate(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("generate", "Sample text from trained weights");
  auto options = std::make_shared<GenerateCommand>();
  TextRequest& request = options->request;
  parser->add_option("--from", options->from, "a run, a checkpoint or a Hugging Face folder")
      ->required();
  parser->add_option("--prompt", request.prompt, "text to continue")->required();
  parser->add_option("--tokens", request.tokens, "most tokens to add")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  parser->add_option("--temperature", request.temperature, "0: always the likeliest token")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  parser->add_option("--top-k", request.top_k, "only the k likeliest; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  parser->add_option("--top-p", request.top_p, "only the likeliest that sum to p")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  parser->add_option("--seed", request.seed, "the same seed, the same text")->capture_default_str();
  parser->add_option("--tokenizer", options->tokenizer, "default: the one in the folder");
  parser->add_option("--tp", options->tp, "ranks that share each matrix")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  parser->add_option("--pp", options->pp, "pipeline stages")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  parser->add_option("--threads", options->threads, "of each rank; default: the cores over ranks")
      ->check(CLI::Range(1, 1024));
  parser->add_flag("--json", options->json, "one JSON document on stdout");
  parser->footer(
      "Example:\n  quatrain generate --from runs/demo --prompt 'And God said' --tokens 80");
  return {parser, [options] { return generate(*options); }};
}

}  // namespace quatrain::apps
