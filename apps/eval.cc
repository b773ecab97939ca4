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
#include "apps/ranks.h"
#include "apps/weights.h"
#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/engine/job.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/kernels/memory.h"

namespace quatrain::apps {
namespace {

struct EvalCommand {
  std::string config;
  std::vector<std::string> overrides;
  bool json = false;
};

// Those that the configuration names, else what its own run wrote.
std::string weights_of(const RunConfig& config) {
  if (config.weights != "none") return config.weights;
  const std::filesystem::path run = config.run.folder;
  if (std::filesystem::exists(run / "weights") || std::filesystem::exists(run / "checkpoints")) {
    return find_weight_source(run).folder.string();
  }
  throw ConfigError(fmt::format(
      "eval: no weights: model.weights is \"none\" and {} does not exist; train first or set "
      "model.weights=FOLDER",
      (run / "weights").string()));
}

class Evaluator {
 public:
  Evaluator(const RunConfig& config, Rank& rank)
      : prologue_({.threads = threads_of(config, rank.ranks_here), .memory = &memory_}),
        tokenizer_(tokenizer_of(config)),
        model_(rank_job_options(config), rank.world) {
    const AxisSet data = AxisSet(Axis::kDpReplicate) | Axis::kDpShard;
    const LoaderOptions options =
        loader_options(config, tokenizer_.get(), model_.mesh.coord(data), model_.mesh.degree(data));
    data_ = make_eval_loader(
        sources_of(config.data.validation, config, tokenizer_.get(), rank.world.size() > 1),
        options);
  }
  EvalReport run() { return evaluate(model_.model, model_.units, model_.pipeline, *data_); }

 private:
  MemoryOwner memory_;
  RankThread prologue_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<DataLoader> data_;
  RankModel model_;
};

nlohmann::ordered_json to_json(const EvalReport& report, const std::string& weights) {
  nlohmann::ordered_json document;
  document["loss"] = report.loss;
  document["loss_hex"] = hex_float(report.loss);
  document["perplexity"] = std::exp(report.loss);
  document["tokens"] = report.tokens;
  document["sequences"] = report.sequences;
  document["weights"] = weights;
  return document;
}

int eval(const EvalCommand& options) {
  const Launch launch = launch_of_this_process();
  Console console(options.json, launch.rank != 0);
  RunConfig config = load_config(options.config, options.overrides, launched_ranks(launch));
  if (config.data.validation.empty()) {
    throw ConfigError("eval: data.validation is empty; give [data] validation = [{ path = ... }]");
  }
  config.weights = weights_of(config);
  const auto prepare = [&] {
    sources_of(config.data.validation, config, tokenizer_of(config).get());
  };
  return run_on_ranks(config, launch, prepare, [&](Rank& rank) {
    const EvalReport report = Evaluator(config, rank).run();
    if (rank.world.rank() != 0) return 0;
    console.line(fmt::format("loss {:.6f}  perplexity {:.3f}  {} tokens in {} sequences",
                             report.loss, std::exp(report.loss), with_commas(report.tokens),
                             with_commas(report.sequences)));
    console.document(to_json(report, config.weights));
    return 0;
  });
}

}  // namespace

Registered add_eval(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("eval", "Token-weighted loss over the validation data");
  auto options = std::make_shared<EvalCommand>();
  parser->add_option("config", options->config, "TOML file of the run")->required();
  parser->add_option("overrides", options->overrides, "section.key=value ...");
  parser->add_flag("--json", options->json, "one JSON document on stdout, the rest on stderr");
  parser->footer("Example:\n  quatrain eval runs/demo/config.toml training.micro_batch=4");
  return {parser, [options] { return eval(*options); }};
}

}  // namespace quatrain::apps
