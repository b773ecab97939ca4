// SPDX-License-Identifier: Apache-2.0
// Saves and loads of processes, on a real file system.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <optional>

#include "quatrain/base/error.h"
#include "quatrain/base/scratch_folder.h"
#include "quatrain/checkpoint/exchange.h"
#include "quatrain/checkpoint/inspect.h"
#include "quatrain/checkpoint/testing/faulty_file_system.h"
#include "quatrain/checkpoint/testing/test_run.h"
#include "quatrain/comm/mpi/mpi_test_main.h"

namespace quatrain {
namespace {

using testing::FaultyFileSystem;
using testing::FileCall;
using testing::TestRun;

class CheckpointMpi : public ::testing::Test {
 protected:
  CheckpointMpi() {
    run_.ranks = world_->size();
    if (world_->rank() == 0) scratch_.emplace();
    run_.options.folder = text_of_first(*world_, scratch_ ? scratch_->path().string() : "");
  }
  std::size_t rank() const { return static_cast<std::size_t>(world_->rank()); }

  std::unique_ptr<Communicator> world_ = test_world().communicator();
  std::optional<ScratchFolder> scratch_;  // rank 0's, for all
  PosixFileSystem files_;
  TestRun run_;
};

TEST_F(CheckpointMpi, SavesUnderOneCutAndLoadsUnderAnother) {
  for (const bool async : {true, false}) {
    run_.options.async = async;
    run_.save(files_, *world_, async ? 10 : 20);
    if (world_->rank() == 0) {
      EXPECT_TRUE(verify_checkpoint(files_, step_path(run_, async ? 10 : 20)).empty());
    }
  }
  const auto into = testing::empty_copy(run_.held(20, 5)[rank()]);
  const auto state = load_newest(files_, *world_, run_.options.folder, into);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->step, 20);
  EXPECT_EQ(testing::wrong_piece(into, run_.tensors(20)), "");
  world_->barrier().wait();
}

TEST_F(CheckpointMpi, AnErrorOfOneRankReachesAll) {
  const int last = world_->size() - 1;
  FaultyFileSystem faulty(files_, {FileCall::kCreate, world_->rank() == last ? 1 : 0, EIO});
  try {
    run_.save(faulty, *world_, 10);
    FAIL();
  } catch (const StorageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(fmt::format("rank {}: cannot create", last)));
  }
  world_->barrier().wait();
  run_.save(files_, *world_, 10);
  world_->barrier().wait();
}

}  // namespace
}  // namespace quatrain
