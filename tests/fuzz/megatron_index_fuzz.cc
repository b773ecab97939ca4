// SPDX-License-Identifier: Apache-2.0
// Megatron's .idx behind eight bytes that say how long its .bin is: documents that are taken lie
// in it.
#include <cstring>
#include <span>

#include "quatrain/data/megatron_index.h"
#include "tests/fuzz/scratch_file.h"
#include "tests/fuzz/target.h"

using namespace quatrain;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static ScratchFile scratch;
  std::int64_t bin_bytes = 0;
  if (size < sizeof bin_bytes) return 0;
  std::memcpy(&bin_bytes, data, sizeof bin_bytes);
  if (bin_bytes < 0) return 0;
  return unless_refused([&] {
    const std::span<const std::uint8_t> idx(data + sizeof bin_bytes, size - sizeof bin_bytes);
    const MegatronIndex index = read_megatron_index(scratch.hold(idx), bin_bytes);
    std::int64_t last = 0;
    for (const std::int64_t begin : index.document_begins) {
      promise(begin >= last && begin <= index.tokens);
      last = begin;
    }
    promise(index.tokens >= 0 && index.tokens <= bin_bytes);
  });
}
