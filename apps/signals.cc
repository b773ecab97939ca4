// SPDX-License-Identifier: Apache-2.0
// See signals.h.
#include "apps/signals.h"

#include <atomic>
#include <csignal>

namespace quatrain::apps {
namespace {

// Written by a handler, read by every rank's thread.
std::atomic<int> g_received{0};
std::atomic<int> g_owners{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  if (number == SIGINT && g_received == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  g_received = number;
}

}  // namespace

StopSignals::StopSignals() {
  if (g_owners++ > 0) return;
  g_received = 0;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::signal(SIGUSR1, on_signal);
}

StopSignals::~StopSignals() {
  if (--g_owners > 0) return;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGUSR1, SIG_DFL);
}

int StopSignals::received() { return g_received; }

}  // namespace quatrain::apps
