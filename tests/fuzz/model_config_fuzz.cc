// SPDX-License-Identifier: Apache-2.0
// config.json: a model without problems can be written and read again as the same.
#include "quatrain/spec/model_io.h"
#include "tests/fuzz/target.h"

using namespace quatrain;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return unless_refused([&] {
    const ModelResult read = model_from_hub_json(text_of(data, size), "config.json");
    const Problems problems = check(read.spec);
    if (!read.problems.empty() || !problems.empty()) return;
    const std::string written = to_hub_json(read.spec);
    const ModelResult again = model_from_hub_json(written, "again");
    promise(again.problems.empty() && to_hub_json(again.spec) == written);
  });
}
