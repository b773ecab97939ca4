// SPDX-License-Identifier: Apache-2.0
// See signals.h.
#include "apps/signals.h"

#include <atomic>
#include <csignal>
#include <cstdint>

namespace quatrain::apps {
namespace {

// Written by a handler, read by every rank's thread.
std::atomic<int> g_received{0};
std::atomic<int> g_owners{0};
std::atomic<std::int64_t> g_terminated_ms{0};  // steady clock
static_assert(std::atomic<int>::is_always_lock_free);

std::int64_t now_ms() {
  using std::chrono::duration_cast, std::chrono::milliseconds;
  return duration_cast<milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void on_signal(int number) {
  if (number == SIGINT && g_received == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  if (number == SIGTERM) g_terminated_ms = now_ms();
  g_received = number;
}

}  // namespace

StopSignals::StopSignals() {
  if (g_owners++ > 0) return;
  g_received = 0;
  g_terminated_ms = 0;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::signal(SIGUSR1, on_signal);
}

// A run that has been asked to end is not killed on its way out by being asked again.
StopSignals::~StopSignals() {
  if (--g_owners > 0) return;
  const auto after = g_received == 0 ? SIG_DFL : SIG_IGN;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, after);
  std::signal(SIGUSR1, after);
}

int StopSignals::received() { return g_received; }

std::chrono::milliseconds StopSignals::since_terminate() {
  const std::int64_t then = g_terminated_ms;
  return std::chrono::milliseconds(then == 0 ? 0 : now_ms() - then);
}

}  // namespace quatrain::apps
