// SPDX-License-Identifier: Apache-2.0
#include "apps/csv.h"

#include <utility>

namespace quatrain::apps {
namespace {

class CsvParser {
 public:
  std::vector<CsvRow> run(std::string_view text) && {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool doubled = quoted_ && text[i] == '"' && i + 1 < text.size() && text[i + 1] == '"';
      if (doubled) {
        row_.back() += text[++i];
      } else {
        take(text[i]);
      }
    }
    end_row();
    return std::move(rows_);
  }

 private:
  void take(char c) {
    if (c == '"') {
      quoted_ = !quoted_;
      any_ = true;
    } else if (!quoted_ && c == ',') {
      row_.emplace_back();
      any_ = true;
    } else if (!quoted_ && c == '\n') {
      end_row();
    } else if (quoted_ || c != '\r') {
      row_.back() += c;
      any_ = true;
    }
  }
  void end_row() {
    if (any_) rows_.push_back(std::move(row_));
    row_ = {""};
    any_ = false;
  }

  std::vector<CsvRow> rows_;
  CsvRow row_{""};
  bool quoted_ = false, any_ = false;
};

std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

}  // namespace

std::vector<CsvRow> parse_csv(std::string_view text) { return CsvParser().run(text); }

std::string csv_line(const CsvRow& row) {
  std::string text;
  for (std::size_t i = 0; i < row.size(); ++i) text += (i == 0 ? "" : ",") + cell(row[i]);
  return text + "\n";
}

}  // namespace quatrain::apps
