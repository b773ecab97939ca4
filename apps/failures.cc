// SPDX-License-Identifier: Apache-2.0
// See failures.h.
#include "apps/failures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "apps/guard.h"

namespace quatrain::apps {

Failures::Failures(int ranks, std::chrono::milliseconds grace)
    : grace_(grace),
      back_(static_cast<std::size_t>(ranks), false),
      watcher_([this](const std::stop_token& stop) { watch(stop); }) {}

Failures::~Failures() = default;

void Failures::ended(int rank, int code) {
  const std::lock_guard lock(mutex_);
  back_[static_cast<std::size_t>(rank)] = true;
  code_ = worst(code_, code);
  changed_.notify_all();
}

void Failures::failed(int rank, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  back_[static_cast<std::size_t>(rank)] = true;
  failures_.push_back({rank, std::move(error)});
  changed_.notify_all();
}

bool Failures::any() {
  const std::lock_guard lock(mutex_);
  return !failures_.empty();
}

int Failures::report() {
  watcher_.request_stop();
  watcher_.join();
  return failures_.empty() ? code_ : print();
}

// The first failure under its rank's name, the others in one line.
int Failures::print() const {
  const Failure& first = failures_.front();
  const int code = guarded([&]() -> int { std::rethrow_exception(first.error); },
                           fmt::format("rank {}: ", first.rank));
  if (failures_.size() == 1) return code;
  std::vector<int> others;
  for (std::size_t i = 1; i < failures_.size(); ++i) others.push_back(failures_[i].rank);
  std::sort(others.begin(), others.end());
  say(fmt::format("rank{} {} ended because rank {} failed", others.size() == 1 ? "" : "s",
                  fmt::join(others, ", "), first.rank));
  return worst(code, kPeerFailed);
}

void Failures::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait(lock, stop, [this] { return !failures_.empty(); })) return;
  const auto all_back = [this] {
    return std::find(back_.begin(), back_.end(), false) == back_.end();
  };
  if (changed_.wait_for(lock, stop, grace_, all_back) || stop.stop_requested()) return;
  const int code = print();
  std::vector<std::size_t> missing;
  for (std::size_t r = 0; r < back_.size(); ++r) {
    if (!back_[r]) missing.push_back(r);
  }
  say(fmt::format("rank{} {} did not come back: the process ends without {}",
                  missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
                  missing.size() == 1 ? "it" : "them"));
  std::_Exit(worst(code, kPeerFailed));
}

}  // namespace quatrain::apps
