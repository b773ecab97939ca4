// SPDX-License-Identifier: Apache-2.0
// Safetensors files: what is taken covers the file and survives being written again.
#include <span>

#include "quatrain/checkpoint/safetensors.h"
#include "tests/fuzz/target.h"

using namespace quatrain;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return unless_refused([&] {
    const SafetensorsHeader header = read_safetensors_header(std::as_bytes(std::span(data, size)));
    std::int64_t covered = 0;
    for (const TensorEntry& entry : header.tensors) {
      promise(entry.begin == covered && entry.end >= entry.begin);
      covered = entry.end;
    }
    promise(header.buffer_offset + covered == static_cast<std::int64_t>(size));
    const std::string text = make_safetensors_header(header.tensors, header.metadata);
    const SafetensorsHeader again =
        parse_safetensors_header(std::string_view(text).substr(8), covered);
    promise(again.metadata == header.metadata && again.tensors.size() == header.tensors.size());
    for (std::size_t i = 0; i < again.tensors.size(); ++i) {
      promise(again.tensors[i].name == header.tensors[i].name);
      promise(again.tensors[i].shape == header.tensors[i].shape);
    }
  });
}
