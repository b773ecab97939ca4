// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each declares its options on the parser and returns what runs when it is chosen:
// options and help come from one place.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>

namespace quatrain::apps {

using Command = std::function<int()>;

struct Registered {
  CLI::App* parser;
  Command run;
};

Registered add_train(CLI::App& app);
Registered add_eval(CLI::App& app);
Registered add_generate(CLI::App& app);
Registered add_verify(CLI::App& app);
Registered add_plan(CLI::App& app);
Registered add_simulate(CLI::App& app);
Registered add_report(CLI::App& app);
Registered add_calibrate(CLI::App& app);
Registered add_data_tokenize(CLI::App& data);
Registered add_data_train_tokenizer(CLI::App& data);
Registered add_data_inspect(CLI::App& data);
Registered add_schedule_list(CLI::App& schedule);
Registered add_schedule_show(CLI::App& schedule);
Registered add_schedule_check(CLI::App& schedule);
Registered add_schedule_run(CLI::App& schedule);
Registered add_checkpoint_inspect(CLI::App& checkpoint);
Registered add_checkpoint_verify(CLI::App& checkpoint);
Registered add_checkpoint_diff(CLI::App& checkpoint);
Registered add_checkpoint_export(CLI::App& checkpoint);
Registered add_checkpoint_import(CLI::App& checkpoint);

}  // namespace quatrain::apps
