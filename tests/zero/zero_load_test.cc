// SPDX-License-Identifier: Apache-2.0
// Weights from a folder into shards: every rank count reads the same numbers, and none ever holds
// more than its part and one unit.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/hub/hub.h"
#include "quatrain/kernels/memory.h"
#include "tests/zero/geometry_run.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

class ZeroLoadTest : public ::testing::Test {
 protected:
  ZeroLoadTest() : folder_(fs::temp_directory_path() / fmt::format("quatrain_load_{}", getpid())) {
    install_counting_allocator();
    Model whole(spec_, {});
    whole.allocate(false);
    whole.initialise(5);
    save_weights(whole, folder_);
  }
  ~ZeroLoadTest() override { fs::remove_all(folder_); }

  const ModelSpec spec_ = tiny_gpt2();
  const fs::path folder_;
};

LoadOptions into(ZeroUnits& units) {
  LoadOptions options;
  options.open = [&](ParamUnit& unit) { units.open_values(unit); };
  options.close = [&](ParamUnit& unit) { units.keep_values(unit); };
  return options;
}

TEST_F(ZeroLoadTest, case_089_case_091_NoRankHoldsMoreThanItsPartAndOneUnit) {
  Recipe recipe{.spec = spec_, .dtype = Dtype::kFloat32};
  std::int64_t largest = 0;
  for (const ZeroUnit& unit : zero_shape(spec_, {}, {}, 0).units) {
    largest = std::max(largest, 4 * unit.numel());
  }
  NamedTensors want;
  std::mutex mutex;
  for (const int shards : {1, 2, 3, 8}) {
    run_thread_ranks(shards, {}, [&](std::unique_ptr<Communicator> world) {
      MemoryOwner memory;
      const RankThread prologue({.threads = 1, .memory = &memory});
      GeometryJob job(recipe, {1, shards, 3, 1}, *world);
      const std::int64_t params = memory.live()[MemoryCategory::kParams];
      memory.reset_peak();
      load_weights(job.model, folder_, into(job.units));
      const MemoryUse highest = memory.highest();
      NamedTensors got = whole_weights(job.units);
      const std::lock_guard lock(mutex);
      EXPECT_EQ(highest[MemoryCategory::kParams], params);
      EXPECT_EQ(highest[MemoryCategory::kBuffers], shards == 1 ? 0 : largest);
      if (want.empty()) want = got;
      EXPECT_EQ(compare(got, want).front().max_rel, 0.0) << shards << " ranks";
    });
  }
}

}  // namespace
}  // namespace quatrain
