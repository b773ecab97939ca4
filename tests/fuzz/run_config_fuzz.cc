// SPDX-License-Identifier: Apache-2.0
// TOML of a run: a configuration without problems can be written and read again as the same.
#include "quatrain/spec/run_config.h"
#include "tests/fuzz/target.h"

using namespace quatrain;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return unless_refused([&] {
    const RunConfigResult read = parse_run_config(text_of(data, size), "run.toml", {}, 0);
    if (!read.problems.empty() || !check(read.config).empty()) return;
    const std::string written = to_toml(read.config);
    const RunConfigResult again = parse_run_config(written, "again", {}, 0);
    promise(again.problems.empty() && to_toml(again.config) == written);
  });
}
