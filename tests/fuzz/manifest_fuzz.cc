// SPDX-License-Identifier: Apache-2.0
// A checkpoint's manifest, without its last member, the checksum that the target adds: what is
// taken is written as the same text again.
#include <string>

#include "quatrain/checkpoint/manifest.h"
#include "quatrain/checkpoint/manifest_format.h"
#include "tests/fuzz/target.h"

using namespace quatrain;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return unless_refused([&] {
    std::string text(text_of(data, size));
    text += manifest_tail(text);
    const Manifest manifest = manifest_from_json(text);
    promise(manifest.bytes() >= 0);
    unless_refused([&] { check_complete(manifest); });
    const std::string written = to_json(manifest);
    promise(to_json(manifest_from_json(written)) == written);
  });
}
