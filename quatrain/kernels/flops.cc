// SPDX-License-Identifier: Apache-2.0
// The current counter of a thread. Kernels count once a call, before they fan out to their team.
#include "quatrain/kernels/flops.h"

namespace quatrain {
namespace {
thread_local FlopCounter* current = nullptr;
}  // namespace

ScopedFlopCounter::ScopedFlopCounter(FlopCounter* counter) : previous_(current) {
  current = counter;
}
ScopedFlopCounter::~ScopedFlopCounter() { current = previous_; }

ScopedPass::ScopedPass(PassKind pass)
    : previous_(current != nullptr ? current->pass : PassKind::kForward) {
  if (current != nullptr) current->pass = pass;
}
ScopedPass::~ScopedPass() {
  if (current != nullptr) current->pass = previous_;
}

void count_flops(std::int64_t flops) {
  if (current != nullptr) current->flops[static_cast<std::size_t>(current->pass)] += flops;
}

}  // namespace quatrain
