// SPDX-License-Identifier: Apache-2.0
// What a command says: results on stdout (or, with --json, one document there and the rest on
// stderr), a progress line on a terminal only.
#pragma once
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace quatrain::apps {

class Console {
 public:
  // `silent`: of a rank whose words another rank says.
  explicit Console(bool json = false, bool silent = false) : json_(json), silent_(silent) {}
  bool json() const { return json_; }
  void line(const std::string& text);                     // a result line; also in log.txt
  void progress(const std::string& text);                 // overwritten by the next; terminals only
  void document(const nlohmann::ordered_json& document);  // only with --json
  bool on_terminal() const;

 private:
  void clear_progress();
  bool json_;
  bool silent_;
  std::size_t progress_width_ = 0;
  std::chrono::steady_clock::time_point last_progress_{};
};

// What a model made, for a terminal: U+FFFD for bytes that are no UTF-8 and for control characters
// other than newline and tab.
std::string printable(std::string_view text);

}  // namespace quatrain::apps
