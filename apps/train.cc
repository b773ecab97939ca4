// SPDX-License-Identifier: Apache-2.0
// quatrain train: options, and what they choose between.
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/dry_run.h"
#include "apps/job.h"
#include "apps/trainer.h"
#include "quatrain/base/error.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  bool dry_run = false;
  bool json = false;
  bool help_config = false;
};

int train(const Options& options) {
  Console console(options.json);
  if (options.help_config) {
    console.line(help_config());
    return 0;
  }
  if (options.config.empty()) throw ConfigError("train: CONFIG is missing; quatrain train --help");
  const RunConfig config = load_config(options.config, options.overrides);
  if (config.data.train.empty()) {
    throw ConfigError(options.config +
                      ": data.train is empty; give [data] train = [{ path = ... }]");
  }
  if (options.dry_run) return dry_run(config, console);
  Trainer trainer(config, console);
  return trainer.run();
}

}  // namespace

Registered add_train(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("train", "Train a model; writes the run folder");
  auto options = std::make_shared<Options>();
  parser->add_option("config", options->config, "TOML file of the run");
  parser->add_option("overrides", options->overrides, "section.key=value ...");
  parser->add_flag("--dry-run", options->dry_run,
                   "check everything, print layout and bytes a rank, stop");
  parser->add_flag("--json", options->json, "one JSON document on stdout, the rest on stderr");
  parser->add_flag("--help-config", options->help_config, "list every configuration key");
  parser->footer(
      "SIGINT and SIGTERM end the run after the current step, with its weights written and exit "
      "code\n"
      "0; a second SIGINT ends it at once.\n\n"
      "Example:\n  quatrain train configs/demo.toml training.steps=200 run.name=try");
  return {parser, [options] { return train(*options); }};
}

}  // namespace quatrain::apps
