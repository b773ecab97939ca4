// SPDX-License-Identifier: Apache-2.0
// Jobs under mpirun that fail, seen from outside: exit code, last lines, time, what they leave.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

struct Ended {
  int code = 0;
  std::string output;
  Clock::duration took{};
};

Ended run(const std::string& command) {
  Ended ended;
  const auto begin = Clock::now();
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) ended.output += buffer.data();
  const int status = pclose(pipe);
  ended.took = Clock::now() - begin;
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

Ended run_job(int ranks, const std::string& arguments) {
  return run(
      fmt::format("{} -n {} {} {}", QUATRAIN_MPIRUN, ranks, QUATRAIN_FAILING_JOB, arguments));
}

// Shared memory and session folders of MPI jobs, and processes of ours.
std::set<std::string> traces() {
  std::set<std::string> found;
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("vader_segment") || name.starts_with("osc_")) found.insert(name);
      if (!name.starts_with("ompi.")) continue;
      std::error_code gone;
      for (const auto& job : fs::directory_iterator(entry.path(), gone)) found.insert(job.path());
    }
  }
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    if (line.starts_with(QUATRAIN_FAILING_JOB)) found.insert(entry.path());
  }
  return found;
}

void expect_nothing_left(const std::set<std::string>& before) {
  std::set<std::string> left;
  for (int i = 0; i < 20; ++i) {
    left.clear();
    for (const std::string& trace : traces()) {
      if (!before.contains(trace)) left.insert(trace);
    }
    if (left.empty()) return;
    std::this_thread::sleep_for(50ms);
  }
  ADD_FAILURE() << ::testing::PrintToString(left);
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(MpiJob, AKilledRankLeavesOneLineOfEachSurvivor) {
  const std::set<std::string> before = traces();
  const Ended ended = run_job(3, "die 1");
  EXPECT_EQ(ended.code, 137) << ended.output;
  EXPECT_LT(ended.took, 10s);
  for (int survivor : {0, 2}) {
    EXPECT_EQ(count(ended.output,
                    fmt::format("rank {}: mpi all_reduce #4 on world {{0, 1, 2}}: interrupted, "
                                "waits for rank 1",
                                survivor)),
              1)
        << ended.output;
  }
  EXPECT_THAT(ended.output, HasSubstr("exited on signal 9"));
  expect_nothing_left(before);
}

TEST(MpiJob, case_142_TheFirstErrorIsTheFirstLine) {
  const std::set<std::string> before = traces();
  const Ended ended = run_job(4, "throw 2");
  EXPECT_EQ(ended.code, 69) << ended.output;
  // Of the ranks' own lines: Open MPI's banner about the abort comes when it likes.
  const std::size_t first = ended.output.find("error: rank ");
  EXPECT_EQ(ended.output.find("error: rank 2: token 7 is outside the vocabulary"), first)
      << ended.output;
  EXPECT_EQ(count(ended.output, "rank 2: "), 1);
  expect_nothing_left(before);
}

TEST(MpiJob, case_140_AnotherMpisLauncherIsRefused) {
  const Ended ended =
      run(fmt::format("env PMI_RANK=0 PMI_SIZE=4 {} throw 9", QUATRAIN_FAILING_JOB));
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.output, HasSubstr("4 processes, all rank 0"));
}

}  // namespace
}  // namespace quatrain
