// SPDX-License-Identifier: Apache-2.0
// What our reader makes of files that come on stdin, each behind its length (u32, little endian):
// a line each, "refused <rule>" or "taken" and, of every tensor, its name in hexadecimal digits,
// dtype, shape and bytes in the file.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/checkpoint/safetensors.h"

namespace quatrain {
namespace {

std::optional<std::vector<std::byte>> next_file() {
  std::array<unsigned char, 4> length{};
  if (std::fread(length.data(), 1, length.size(), stdin) != length.size()) return std::nullopt;
  std::size_t size = 0;
  for (std::size_t i = 0; i < length.size(); ++i) size |= std::size_t{length[i]} << (8 * i);
  std::vector<std::byte> file(size);
  if (std::fread(file.data(), 1, size, stdin) != size) return std::nullopt;
  return file;
}

void describe(const SafetensorsHeader& header, std::string& out) {
  out += "taken";
  for (const TensorEntry& entry : header.tensors) {
    out += ' ';
    for (const char c : entry.name) {
      fmt::format_to(std::back_inserter(out), "{:02x}", static_cast<unsigned char>(c));
    }
    fmt::format_to(std::back_inserter(out), "|{}|{}|{}|{}", entry.dtype,
                   fmt::join(entry.shape, ","), header.buffer_offset + entry.begin,
                   header.buffer_offset + entry.end);
  }
}

void judge(const std::vector<std::byte>& file, std::string& out) {
  try {
    describe(read_safetensors_header(file), out);
  } catch (const DataError& error) {
    fmt::format_to(std::back_inserter(out), "refused {}", error.what());
  }
}

// A message may quote what a file holds.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  return text + "\n";
}

}  // namespace
}  // namespace quatrain

int main() {
  while (const auto file = quatrain::next_file()) {
    std::string verdict;
    quatrain::judge(*file, verdict);
    verdict = quatrain::one_line(std::move(verdict));
    std::fwrite(verdict.data(), 1, verdict.size(), stdout);
  }
}
