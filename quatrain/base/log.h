// SPDX-License-Identifier: Apache-2.0
// Log lines: to stderr, and to a run's log.txt once opened. Strings only, so that callers' fmt and
// spdlog's may differ. Thread-safe.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace quatrain {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
void log(LogLevel level, const std::string& text);
// To the run's log.txt alone, when there is one: what the console has said already. Flushed.
void log_quietly(const std::string& text);
void set_log_level(LogLevel level);
// Also writes to `path` (appended) from now on; an empty path stops that.
void log_to_file(const std::filesystem::path& path);
void flush_log();

inline void log_info(const std::string& text) { log(LogLevel::kInfo, text); }
inline void log_warning(const std::string& text) { log(LogLevel::kWarning, text); }
inline void log_error(const std::string& text) { log(LogLevel::kError, text); }

}  // namespace quatrain
