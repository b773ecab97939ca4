// SPDX-License-Identifier: Apache-2.0
// quatrain eval: token-weighted loss over a held-out set, each sequence counted once.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/job.h"
#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/comm/self/self.h"
#include "quatrain/engine/executor.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/hub/hub.h"
#include "quatrain/kernels/memory.h"

namespace quatrain::apps {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  bool json = false;
};

// Weights: those the configuration names, else the ones that its own run wrote.
std::string weights_of(const RunConfig& config) {
  if (config.weights != "none") return config.weights;
  const std::filesystem::path written = std::filesystem::path(config.run.folder) / "weights";
  if (std::filesystem::exists(written)) return written.string();
  throw ConfigError(fmt::format(
      "eval: no weights: model.weights is \"none\" and {} does not exist; train first or set "
      "model.weights=FOLDER",
      written.string()));
}

int eval(const Options& options) {
  Console console(options.json);
  const RunConfig config = load_config(options.config, options.overrides);
  if (config.data.validation.empty()) {
    throw ConfigError("eval: data.validation is empty; give [data] validation = [{ path = ... }]");
  }
  const std::string weights = weights_of(config);
  MemoryOwner memory;
  const RankThread prologue({.threads = threads_of(config), .memory = &memory});
  const auto tokenizer = tokenizer_of(config);
  const auto data = make_eval_loader(sources_of(config.data.validation, config, tokenizer.get()),
                                     loader_options(config, tokenizer.get()));
  const auto world = make_self_communicator();
  RankGroups groups = make_rank_groups(*world, Mesh());
  Model model(config.model, build_options(config));
  ZeroUnits units(model, groups, 0);
  Pipeline pipeline(*groups.pipe, {0});
  units.allocate(false);
  load_weights(model, weights);
  const EvalReport report = evaluate(model, units, pipeline, *data);
  console.line(fmt::format("loss {:.6f}  perplexity {:.3f}  {} tokens in {} sequences", report.loss,
                           std::exp(report.loss), with_commas(report.tokens),
                           with_commas(report.sequences)));
  nlohmann::ordered_json document;
  document["loss"] = report.loss;
  document["loss_hex"] = hex_float(report.loss);
  document["perplexity"] = std::exp(report.loss);
  document["tokens"] = report.tokens;
  document["sequences"] = report.sequences;
  document["weights"] = weights;
  console.document(document);
  return 0;
}

}  // namespace

Registered add_eval(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("eval", "Token-weighted loss over the validation data");
  auto options = std::make_shared<Options>();
  parser->add_option("config", options->config, "TOML file of the run")->required();
  parser->add_option("overrides", options->overrides, "section.key=value ...");
  parser->add_flag("--json", options->json, "one JSON document on stdout, the rest on stderr");
  parser->footer("Example:\n  quatrain eval runs/demo/config.toml training.micro_batch=4");
  return {parser, [options] { return eval(*options); }};
}

}  // namespace quatrain::apps
