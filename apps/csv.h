// SPDX-License-Identifier: Apache-2.0
// Tables as comma-separated values (RFC 4180).
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace quatrain::apps {

using CsvRow = std::vector<std::string>;

// Quoted cells may hold commas, doubled quotes and newlines; empty lines are left out.
std::vector<CsvRow> parse_csv(std::string_view text);
// With a newline behind it.
std::string csv_line(const CsvRow& row);

}  // namespace quatrain::apps
