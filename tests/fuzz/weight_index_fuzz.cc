// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json: shards that are taken are plain names below the folder.
#include "quatrain/hub/weight_files.h"
#include "tests/fuzz/target.h"

using namespace quatrain;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return unless_refused([&] {
    for (const auto& [tensor, file] : parse_weight_index(text_of(data, size)).file_of) {
      promise(file.ends_with(".safetensors") && file.front() != '/');
      promise(("/" + file + "/").find("/../") == std::string::npos);
    }
  });
}
