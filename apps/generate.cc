// SPDX-License-Identifier: Apache-2.0
// quatrain generate: samples text from a run's weights or a Hugging Face folder.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/text.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/hub/hub.h"
#include "quatrain/kernels/memory.h"

namespace quatrain::apps {
namespace fs = std::filesystem;
namespace {

struct Options {
  std::string from;
  std::string tokenizer;
  TextRequest request;
  int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  bool json = false;
};

int generate(const Options& options) {
  Console console(options.json);
  const fs::path folder = find_weights(options.from).weights;
  const auto tokenizer =
      open_tokenizer(options.tokenizer.empty() ? folder.string() : options.tokenizer);
  MemoryOwner memory;
  const RankThread prologue({.threads = options.threads, .memory = &memory});
  Model model(read_hub_spec(folder), {});
  model.allocate(false);
  load_weights(model, folder);
  const std::string text = generate_text(model, *tokenizer, options.request);
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
  auto options = std::make_shared<Options>();
  TextRequest& request = options->request;
  parser->add_option("--from", options->from, "a run folder or a Hugging Face folder")->required();
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
  parser->add_option("--threads", options->threads)->check(CLI::Range(1, 1024));
  parser->add_flag("--json", options->json, "one JSON document on stdout");
  parser->footer(
      "Example:\n  quatrain generate --from runs/demo --prompt 'And God said' --tokens 80");
  return {parser, [options] { return generate(*options); }};
}

}  // namespace quatrain::apps
