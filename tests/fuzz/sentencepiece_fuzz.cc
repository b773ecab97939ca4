// SPDX-License-Identifier: Apache-2.0
// A sentencepiece model: one that is taken makes ids of its vocabulary, and text of them.
#include "quatrain/data/tokenizer.h"
#include "tests/fuzz/scratch_file.h"
#include "tests/fuzz/target.h"

using namespace quatrain;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static ScratchFile scratch;
  return unless_refused([&] {
    const auto tokenizer = open_sentencepiece(scratch.hold(std::span(data, size)));
    for (const char* text : {"", "Sing, O goddess 1234\n", "e\xCC\x81 \xFF\xF0\x9F\x98\x80"}) {
      const std::vector<std::int64_t> ids = tokenizer->encode(text);
      for (const std::int64_t id : ids) promise(id >= 0 && id < tokenizer->vocab_size());
      tokenizer->decode(ids);
    }
  });
}
