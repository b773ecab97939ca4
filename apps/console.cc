// SPDX-License-Identifier: Apache-2.0
// See console.h. Only apps/ writes to standard streams.
#include "apps/console.h"

#include <unistd.h>

#include <cstdio>

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
  clear_progress();
  write_to(json_ ? stderr : stdout, text + "\n");
}

void Console::progress(const std::string& text) {
  if (!on_terminal()) return;
  clear_progress();
  write_to(stdout, text);
  progress_width_ = text.size();
}

void Console::document(const nlohmann::ordered_json& document) {
  if (json_) write_to(stdout, document.dump(2) + "\n");
}

}  // namespace quatrain::apps
