// SPDX-License-Identifier: Apache-2.0
// quatrain train: options, and what they choose between.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "apps/agreed.h"
#include "apps/commands.h"
#include "apps/console.h"
#include "apps/dry_run.h"
#include "apps/job.h"
#include "apps/ranks.h"
#include "apps/trainer.h"
#include "quatrain/base/error.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {
namespace {

struct TrainCommand {
  std::string config;
  std::string backend;
  int ranks = 0;
  std::vector<std::string> overrides;
  bool dry_run = false;
  bool json = false;
  bool help_config = false;
};

RunConfig load_for(const Launch& launch, const TrainCommand& options) {
  std::vector<std::string> overrides = options.overrides;
  if (!options.backend.empty()) overrides.push_back("comm.backend=" + options.backend);
  const int launched = launched_ranks(launch);
  if (launched > 0 && options.ranks > 0 && launched != options.ranks) {
    throw ConfigError(fmt::format("--ranks {} but {} started {} processes; leave --ranks out",
                                  options.ranks, name(launch.launcher), launched));
  }
  RunConfig config = load_config(options.config, overrides, std::max(launched, options.ranks));
  const bool processes =
      launched > 0 && !config.comm.backend.empty() && config.comm.backend != "mpi";
  if (processes) {
    throw ConfigError(
        fmt::format("comm.backend = \"{}\" is one process, but {} started {}; leave "
                    "it out, or start without the launcher",
                    config.comm.backend, name(launch.launcher), launched));
  }
  return config;
}

// Once for all ranks: text becomes tokens in a cache, and every id is checked.
void prepare_data(const RunConfig& config) {
  const auto tokenizer = tokenizer_of(config);
  sources_of(config.data.train, config, tokenizer.get());
  sources_of(config.data.validation, config, tokenizer.get());
}

int train(const TrainCommand& options) {
  if (options.help_config) {
    Console().line(help_config());
    return 0;
  }
  if (options.config.empty()) throw ConfigError("train: CONFIG is missing; quatrain train --help");
  const Launch launch = launch_of_this_process();
  Console console(options.json, launch.rank != 0);
  const RunConfig config = load_for(launch, options);
  if (config.data.train.empty()) {
    throw ConfigError(options.config +
                      ": data.train is empty; give [data] train = [{ path = ... }]");
  }
  if (options.dry_run) return dry_run(config, console);
  return run_on_ranks(
      config, launch, [&] { prepare_data(config); },
      [&](Rank& rank) {
        Console own(options.json, rank.world.rank() != 0);
        return ending_together(rank.world, [&] { return Trainer(config, rank, own).run(); });
      });
}

}  // namespace

Registered add_train(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("train", "Train a model; writes the run folder");
  auto options = std::make_shared<TrainCommand>();
  parser->add_option("config", options->config, "TOML file of the run");
  parser->add_option("overrides", options->overrides, "section.key=value ...");
  parser->add_option("--ranks", options->ranks, "ranks of this process, where dp_shard = -1")
      ->check(CLI::Range(1, 1 << 24));
  parser->add_option("--backend", options->backend,
                     "self, thread or mpi; the same as comm.backend=");
  parser->add_flag("--dry-run", options->dry_run,
                   "check everything, print layout and bytes a rank, stop");
  parser->add_flag("--json", options->json, "one JSON document on stdout, the rest on stderr");
  parser->add_flag("--help-config", options->help_config, "list every configuration key");
  parser->footer(
      "SIGTERM, SIGUSR1 and SIGINT end the run after the current step, with a checkpoint and exit "
      "code\n75: run it again with checkpoint.resume=if_present. A second SIGINT ends it at once. "
      "The file\nRUN/save-now asks for a checkpoint, RUN/stop-now for one and the end.\n\n"
      "Example:\n  quatrain train configs/demo.toml training.steps=200 run.name=try");
  return {parser, [options] { return train(*options); }};
}

}  // namespace quatrain::apps
