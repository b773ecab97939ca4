// SPDX-License-Identifier: Apache-2.0
// See console.h. Only apps/ writes to standard streams.
#include "apps/console.h"

#include <unistd.h>

#include <cstdio>

#include "quatrain/base/log.h"
#include "quatrain/data/utf8.h"

namespace quatrain::apps {
namespace {

void write_to(std::FILE* stream, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace

bool Console::on_terminal() const { return isatty(STDOUT_FILENO) != 0 && !json_; }

void Console::clear_progress() {
  if (progress_width_ == 0) return;
  write_to(stdout, "\r" + std::string(progress_width_, ' ') + "\r");
  progress_width_ = 0;
}

void Console::line(const std::string& text) {
  if (silent_) return;
  clear_progress();
  write_to(json_ ? stderr : stdout, text + "\n");
  log_quietly(text);
}

// Ten a second: nobody reads more, and a launcher that is slow to read them stops who writes.
void Console::progress(const std::string& text) {
  if (silent_ || !on_terminal()) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_progress_ < std::chrono::milliseconds(100)) return;
  last_progress_ = now;
  clear_progress();
  write_to(stdout, text);
  progress_width_ = text.size();
}

void Console::document(const nlohmann::ordered_json& document) {
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  if (json_ && !silent_) write_to(stdout, document.dump(2, ' ', false, kReplace) + "\n");
}

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = utf8_char_bytes(text.substr(0, 4));
    const auto front = static_cast<unsigned char>(text[0]);
    const bool control = (front < 0x20 && front != '\n' && front != '\t') || front == 0x7F;
    if (bytes == 0 || control) {
      result += "\xEF\xBF\xBD";
    } else {
      result += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return result;
}

}  // namespace quatrain::apps
