// SPDX-License-Identifier: Apache-2.0
// Text for people: nearest names, numbers with units, aligned tables.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

// Up to `most` candidates by edit distance, nearest first; only plausible typing slips.
std::vector<std::string> nearest(std::string_view word, std::span<const std::string> candidates,
                                 std::size_t most = 3);
// "1 2 4 8": divisors of n.
std::vector<std::int64_t> divisors(std::int64_t n);
std::string join(std::span<const std::string> parts, std::string_view separator);
std::string join(std::span<const std::int64_t> parts, std::string_view separator);
std::string with_commas(std::int64_t value);            // 25,221
std::string human_bytes(std::int64_t bytes);            // 1.21 GiB
std::string human_duration(double seconds);             // 0:00:39
bool glob_match(std::string_view pattern, std::string_view text);  // * and ?
std::string hex_float(double value);                    // 0x1.921fp+1

// Columns as wide as their widest cell; numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);
  std::string to_string() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace quatrain
