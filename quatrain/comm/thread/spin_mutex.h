// SPDX-License-Identifier: Apache-2.0
// A mutex for sections of some ten instructions: tries for about a microsecond before it sleeps, so
// that two ranks that meet do not pay for two switches of context.
#pragma once
#include <mutex>

namespace quatrain {

#if defined(__x86_64__)
inline void relax_cpu() { __builtin_ia32_pause(); }
#else
inline void relax_cpu() {}
#endif

class SpinMutex {
 public:
  void lock() {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      if (mutex_.try_lock()) return;
      relax_cpu();
    }
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr int kAttempts = 40;
  std::mutex mutex_;
};

}  // namespace quatrain
