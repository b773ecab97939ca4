// SPDX-License-Identifier: Apache-2.0
// The prologue of a rank's thread. Compute threads, inference mode and the books of memory are
// thread-local: a new thread otherwise uses every core, records for autograd and counts nowhere.
#pragma once
#include <memory>

namespace quatrain {

class MemoryOwner;

struct RankThreadOptions {
  int threads = 1;                // compute threads of this rank, at least 1
  MemoryOwner* memory = nullptr;  // may be null: nothing is counted
};

// First thing on the rank's thread, before any tensor of it is made, and destroyed there last.
// Tensors made under it cannot enter autograd.
class [[nodiscard]] RankThread {
 public:
  explicit RankThread(const RankThreadOptions& options);
  ~RankThread();
  RankThread(const RankThread&) = delete;
  RankThread& operator=(const RankThread&) = delete;

 private:
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace quatrain
