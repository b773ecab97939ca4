// SPDX-License-Identifier: Apache-2.0
// The `quatrain` command: one subcommand a file; this is the only main().
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/guard.h"
#include "quatrain/base/text.h"
#include "quatrain/kernels/memory.h"

namespace {

using quatrain::apps::Registered;

// CLI11's own codes for a wrong command line become exit code 2; --help stays 0.
int parse_error(const CLI::App& app, const CLI::ParseError& error) {
  const int code = app.exit(error);
  return code == 0 ? 0 : quatrain::apps::kUsage;
}

// What the first word that names no command should have been; empty when all is well. CLI11 would
// say only that a subcommand is required.
std::string unknown_command(const CLI::App& root, int argc, char** argv) {
  const CLI::App* app = &root;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    std::vector<std::string> names;
    for (const CLI::App* sub : app->get_subcommands({})) names.push_back(sub->get_name());
    if (names.empty()) return "";
    if (std::find(names.begin(), names.end(), argv[i]) == names.end()) {
      const std::vector<std::string> likely = quatrain::nearest(argv[i], names, 1);
      return "unknown command " + std::string(argv[i]) + "; " +
             (likely.empty() ? "" : "did you mean " + likely[0] + "? ") +
             "commands: " + quatrain::join(names, ", ");
    }
    app = app->get_subcommand(argv[i]);
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  quatrain::install_counting_allocator();
  CLI::App app("Quatrain trains large language models on any cluster geometry.", "quatrain");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("quatrain ") + QUATRAIN_VERSION);

  CLI::App* data = app.add_subcommand("data", "Make and inspect token files");
  data->require_subcommand(1);
  CLI::App* schedule = app.add_subcommand("schedule", "Pipeline schedules: list, draw, check, run");
  schedule->require_subcommand(1);
  CLI::App* checkpoint =
      app.add_subcommand("checkpoint", "Facts, proofs, Hugging Face folders in and out");
  checkpoint->require_subcommand(1);
  const std::vector<Registered> commands = {quatrain::apps::add_train(app),
                                            quatrain::apps::add_eval(app),
                                            quatrain::apps::add_generate(app),
                                            quatrain::apps::add_verify(app),
                                            quatrain::apps::add_plan(app),
                                            quatrain::apps::add_simulate(app),
                                            quatrain::apps::add_report(app),
                                            quatrain::apps::add_calibrate(app),
                                            quatrain::apps::add_data_tokenize(*data),
                                            quatrain::apps::add_data_train_tokenizer(*data),
                                            quatrain::apps::add_data_inspect(*data),
                                            quatrain::apps::add_schedule_list(*schedule),
                                            quatrain::apps::add_schedule_show(*schedule),
                                            quatrain::apps::add_schedule_check(*schedule),
                                            quatrain::apps::add_schedule_run(*schedule),
                                            quatrain::apps::add_checkpoint_inspect(*checkpoint),
                                            quatrain::apps::add_checkpoint_verify(*checkpoint),
                                            quatrain::apps::add_checkpoint_diff(*checkpoint),
                                            quatrain::apps::add_checkpoint_export(*checkpoint),
                                            quatrain::apps::add_checkpoint_import(*checkpoint)};
  if (const std::string wrong = unknown_command(app, argc, argv); !wrong.empty()) {
    std::fprintf(stderr, "quatrain: %s\n", wrong.c_str());
    return quatrain::apps::kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return parse_error(app, error);
  }
  for (const Registered& command : commands) {
    if (command.parser->parsed()) return quatrain::apps::guarded(command.run);
  }
  return quatrain::apps::kUsage;
}
