// SPDX-License-Identifier: Apache-2.0
// See signals.h.
#include "apps/signals.h"

#include <csignal>

namespace quatrain::apps {
namespace {

volatile std::sig_atomic_t g_received = 0;

void on_signal(int number) {
  if (number == SIGINT && g_received == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  g_received = number;
}

}  // namespace

StopSignals::StopSignals() {
  g_received = 0;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool StopSignals::terminated() { return g_received == SIGTERM; }

int StopSignals::received() const { return static_cast<int>(g_received); }

}  // namespace quatrain::apps
