// SPDX-License-Identifier: Apache-2.0
#include "quatrain/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::filesystem::path log_path() {
  return std::filesystem::path(::testing::TempDir()) /
         ("quatrain_log_" + std::to_string(::getpid()) + ".txt");
}

TEST(Log, GoesToStderrAndTheFile) {
  log_to_file(log_path());
  ::testing::internal::CaptureStderr();
  log_info("loss is {finite}");
  log(LogLevel::kDebug, "only in the file");
  log_warning("slow disk");
  log_quietly("said elsewhere");
  flush_log();
  const std::string console = ::testing::internal::GetCapturedStderr();
  log_to_file({});
  log(LogLevel::kDebug, "after closing");
  EXPECT_EQ(console, "info: loss is {finite}\nwarning: slow disk\n");
  const std::string file = read_file(log_path());
  EXPECT_THAT(file, HasSubstr("debug only in the file\n"));
  EXPECT_THAT(file, HasSubstr("warning slow disk\n"));
  EXPECT_THAT(file, HasSubstr("info said elsewhere\n"));
  EXPECT_THAT(file, Not(HasSubstr("after closing")));
  std::filesystem::remove(log_path());
}

TEST(Log, LevelHidesFromTheConsole) {
  ::testing::internal::CaptureStderr();
  set_log_level(LogLevel::kError);
  log_info("quiet");
  log_error("loud");
  set_log_level(LogLevel::kInfo);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "error: loud\n");
}

TEST(Log, AppendsWholeLinesFromThreads) {
  log_to_file(log_path());
  set_log_level(LogLevel::kError);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 100; ++i) log_info("0123456789");
      });
    }
  }
  log_to_file({});
  set_log_level(LogLevel::kInfo);
  const std::string file = read_file(log_path());
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = file.find("info 0123456789\n", at)) != std::string::npos; ++at) {
    ++lines;
  }
  EXPECT_EQ(lines, 400U);
  std::filesystem::remove(log_path());
}

TEST(Log, UnwritableFileIsAStorageError) {
  EXPECT_THAT([] { log_to_file("/proc/none/log.txt"); },
              ::testing::ThrowsMessage<StorageError>(HasSubstr("/proc/none/log.txt")));
}

}  // namespace
}  // namespace quatrain
