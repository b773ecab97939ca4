// SPDX-License-Identifier: Apache-2.0
// The one file that sees spdlog. The state is the process's (its stderr is one), behind a mutex.
#include "quatrain/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

constexpr const char* kPattern = "%Y-%m-%d %H:%M:%S.%e %l %v";

struct LogState {
  LogState() : console("quatrain", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    console.set_pattern("%l: %v");
    console.set_level(spdlog::level::info);
  }
  std::mutex mutex;
  spdlog::logger console;
  std::unique_ptr<spdlog::logger> file;
};

LogState& state() {
  static LogState instance;
  return instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void log(LogLevel level, const std::string& text) {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  s.console.log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
  if (s.file) s.file->log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

void log_quietly(const std::string& text) {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.file) return;
  s.file->log(spdlog::level::info, spdlog::string_view_t(text.data(), text.size()));
  s.file->flush();
}

void set_log_level(LogLevel level) {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  s.console.set_level(to_spdlog(level));
}

void log_to_file(const std::filesystem::path& path) {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  s.file.reset();
  if (path.empty()) return;
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    s.file = std::make_unique<spdlog::logger>("file", std::move(sink));
  } catch (const spdlog::spdlog_ex& error) {
    throw StorageError("cannot write the log " + path.string() + ": " + error.what());
  }
  s.file->set_pattern(kPattern);
  s.file->set_level(spdlog::level::debug);
  s.file->flush_on(spdlog::level::warn);
}

void flush_log() {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  s.console.flush();
  if (s.file) s.file->flush();
}

}  // namespace quatrain
