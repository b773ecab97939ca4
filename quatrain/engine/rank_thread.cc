// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/rank_thread.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "quatrain/kernels/check.h"
#include "quatrain/kernels/memory.h"

namespace quatrain {

struct RankThread::Guards {
  explicit Guards(MemoryOwner* memory) : owner(memory) {}
  c10::InferenceMode mode;
  ScopedMemoryOwner owner;
};

RankThread::RankThread(const RankThreadOptions& options) {
  CHECK(options.threads >= 1, "{} compute threads", options.threads);
  at::set_num_threads(options.threads);
  guards_ = std::make_unique<Guards>(options.memory);
}

RankThread::~RankThread() = default;

}  // namespace quatrain
