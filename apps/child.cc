// SPDX-License-Identifier: Apache-2.0
// See child.h.
#include "apps/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>

#include "quatrain/base/error.h"

extern char** environ;

namespace quatrain::apps {
namespace {

struct Pipe {
  int read = -1, write = -1;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw StorageError("cannot make a pipe");
  return {ends[0], ends[1]};
}

pid_t spawned(const std::vector<std::string>& arguments, const Pipe& out, const Pipe& err) {
  std::vector<std::string> words = {"quatrain"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write, STDERR_FILENO);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(out.write);
  ::close(err.write);
  if (error != 0) throw StorageError(fmt::format("cannot start a process: {}", strerror(error)));
  return pid;
}

// Reads both ends until they close; false where the deadline passed before.
bool collected(const Pipe& out, const Pipe& err, double timeout_s, ChildResult& result) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  std::array<pollfd, 2> ends = {pollfd{out.read, POLLIN, 0}, pollfd{err.read, POLLIN, 0}};
  std::array<std::string*, 2> texts = {&result.out, &result.err};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    if (::poll(ends.data(), ends.size(), static_cast<int>(left.count())) < 0 && errno != EINTR) {
      return false;
    }
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].fd < 0 || (ends[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t n = ::read(ends[i].fd, buffer.data(), buffer.size());
      if (n > 0) texts[i]->append(buffer.data(), static_cast<std::size_t>(n));
      if (n <= 0) ends[i].fd = -1;
    }
  }
  return true;
}

}  // namespace

std::string ChildResult::reason(double timeout_s) const {
  if (timed_out) return fmt::format("took longer than {:g} s", timeout_s);
  if (signal != 0) return fmt::format("ended by {}", sigdescr_np(signal));
  std::string text = err;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  text = text.substr(text.find_last_of('\n') + 1);
  return text.empty() ? fmt::format("exit code {}", code) : text;
}

ChildResult run_child(const std::vector<std::string>& arguments, double timeout_s) {
  const Pipe out = make_pipe(), err = make_pipe();
  const pid_t pid = spawned(arguments, out, err);
  ChildResult result;
  result.timed_out = !collected(out, err, timeout_s, result);
  if (result.timed_out) ::kill(pid, SIGKILL);
  ::close(out.read);
  ::close(err.read);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return result;
}

}  // namespace quatrain::apps
