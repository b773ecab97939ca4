// SPDX-License-Identifier: Apache-2.0
// Saves of thread ranks: what they write, when, and what remains when something fails.
#include "quatrain/checkpoint/checkpointer.h"

#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>

#include "quatrain/base/error.h"
#include "quatrain/checkpoint/inspect.h"
#include "quatrain/checkpoint/load.h"
#include "quatrain/checkpoint/ownership.h"
#include "quatrain/checkpoint/reader.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/checkpoint/testing/faulty_file_system.h"
#include "quatrain/checkpoint/testing/memory_file_system.h"
#include "quatrain/checkpoint/testing/test_run.h"

namespace quatrain {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::FaultyFileSystem;
using testing::FileCall;
using testing::for_each_rank;
using ::testing::HasSubstr;
using testing::MemoryFileSystem;
using testing::step_path;
using testing::TestRun;

// Holds writes back until it is opened.
class Gate {
 public:
  explicit Gate(FaultyFileSystem& files) {
    files.set_watcher([this](FileCall call) {
      if (call != FileCall::kWrite) return;
      std::unique_lock lock(mutex_);
      opened_.wait(lock, [this] { return open_; });
    });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

std::string message_of(const std::function<void()>& f) {
  try {
    f();
    return "";
  } catch (const StorageError& error) {
    return error.what();
  }
}

std::uint64_t bytes_under(const MemoryFileSystem& files, const std::string& part) {
  std::uint64_t bytes = 0;
  for (const auto& [path, content] : files.files()) {
    if (path.find(part) != std::string::npos) bytes += content.size();
  }
  return bytes;
}

TEST(Checkpointer, KeepsTheNewestAndNeverFewerThanTwo) {
  for (const int keep : {1, 2, 3}) {
    TestRun run;
    run.options.keep = keep;
    MemoryFileSystem files;
    for (const std::int64_t step : {10, 20, 30, 40, 50}) run.save(files, step);
    const std::vector<std::int64_t> steps = list_steps(files, "/run");
    EXPECT_EQ(steps.size(), keep == 3 ? 3U : 2U);
    EXPECT_EQ(steps.front(), 50);
    EXPECT_EQ(newest_valid(files, "/run"), 50);
  }
}

TEST(Checkpointer, DoesNotCountDamagedOnesAmongThoseKept) {
  TestRun run;
  MemoryFileSystem files;
  for (const std::int64_t step : {10, 20}) run.save(files, step);
  files.set("/run/step-00000020/rank-00000.safetensors", "damaged");
  run.save(files, 30);
  EXPECT_THAT(list_steps(files, "/run"), ElementsAre(30, 20, 10));
  run.save(files, 40);
  EXPECT_THAT(list_steps(files, "/run"), ElementsAre(40, 30));
}

// A run that went back to an older step does not lose what it saves to the line it left.
TEST(Checkpointer, LeavesNewerStepsAlone) {
  TestRun run;
  MemoryFileSystem files;
  for (const std::int64_t step : {10, 20, 50, 60}) run.save(files, step);
  for (const std::int64_t step : {11, 12, 13}) run.save(files, step);
  EXPECT_THAT(list_steps(files, "/run"), ElementsAre(60, 50, 13, 12));
}

TEST(Checkpointer, RemovesWhatItKnowsAndNothingElse) {
  TestRun run;
  MemoryFileSystem files;
  files.set("/run/step-00000007/rank-00000.safetensors", "left by a save that was killed");
  files.set("/run/step-00000008/rank-00000.safetensors", "the same");
  files.set("/run/step-00000008/notes.txt", "mine");
  files.set("/run/steps.txt", "mine");
  run.save(files, 10);
  EXPECT_EQ(bytes_under(files, "step-00000007"), 0U);
  EXPECT_EQ(bytes_under(files, "step-00000008"), 4U);
  EXPECT_EQ(bytes_under(files, "steps.txt"), 4U);
}

TEST(Checkpointer, ReturnsBeforeAnythingIsWrittenAndPolls) {
  TestRun run;
  MemoryFileSystem memory;
  FaultyFileSystem files(memory);
  Gate gate(files);
  for_each_rank(2, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    Checkpointer checkpointer(files, comm, run.options);
    EXPECT_EQ(checkpointer.poll(), std::nullopt);
    checkpointer.save(run.state(10), run.held(10)[rank]);
    EXPECT_TRUE(checkpointer.in_flight());
    EXPECT_EQ(checkpointer.poll(), std::nullopt);
    EXPECT_TRUE(list_steps(memory, "/run").empty());
    comm.barrier().wait();
    gate.open();
    std::optional<std::int64_t> step;
    while (!step) step = checkpointer.poll();
    EXPECT_EQ(step, 10);
    EXPECT_FALSE(checkpointer.in_flight());
    EXPECT_EQ(checkpointer.finish(), std::nullopt);
  });
  EXPECT_EQ(run.load(memory), 10);
}

TEST(Checkpointer, HasAtMostOneSaveInFlight) {
  TestRun run;
  MemoryFileSystem files;
  for_each_rank(2, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    Checkpointer checkpointer(files, comm, run.options);
    EXPECT_EQ(checkpointer.save(run.state(1), run.held(1)[rank]), std::nullopt);
    EXPECT_EQ(checkpointer.save(run.state(2), run.held(2)[rank]), 1);
    EXPECT_EQ(checkpointer.save(run.state(3), run.held(3)[rank]), 2);
    EXPECT_THAT(list_steps(files, "/run"), ElementsAre(2, 1));
    checkpointer.finish();
  });
  EXPECT_EQ(run.load(files), 3);
}

// Whoever goes away in the middle of a save leaves nothing that looks like a checkpoint.
TEST(Checkpointer, LeavesNoCheckpointWhenItIsDestroyed) {
  TestRun run;
  MemoryFileSystem files;
  run.save(files, 10);
  for_each_rank(2, [&](Communicator& comm) {
    Checkpointer checkpointer(files, comm, run.options);
    checkpointer.save(run.state(20), run.held(20)[static_cast<std::size_t>(comm.rank())]);
  });
  EXPECT_EQ(run.load(files), 10);
  run.save(files, 20);
  EXPECT_EQ(run.load(files), 20);
}

TEST(Checkpointer, Case065APartialFolderNeitherHangsNorStays) {
  TestRun run{.ranks = 4};
  MemoryFileSystem files;
  run.save(files, 10);
  files.set("/run/step-00000020/rank-00002.safetensors", "part of a fi");
  files.set("/run/step-00000020/rank-00009.safetensors", "of a larger job");
  files.set("/run/step-00000020/manifest.json.tmp", "{");
  EXPECT_EQ(run.load(files), 10);
  run.save(files, 20);
  EXPECT_EQ(run.load(files), 20);
  EXPECT_EQ(bytes_under(files, "rank-00009"), 0U);
  EXPECT_EQ(bytes_under(files, ".tmp"), 0U);
}

TEST(Checkpointer, ReplacesACheckpointOfTheSameStep) {
  TestRun large{.ranks = 4};
  TestRun small{.ranks = 2};
  MemoryFileSystem files;
  large.save(files, 10);
  EXPECT_GT(bytes_under(files, "rank-00003"), 0U);
  small.save(files, 10);
  EXPECT_EQ(small.load(files), 10);
  EXPECT_EQ(bytes_under(files, "rank-00003"), 0U);
}

TEST(Checkpointer, Case065AnErrorOfRank0ReachesAllRanks) {
  TestRun run{.ranks = 3};
  MemoryFileSystem memory;
  FaultyFileSystem files(memory, {FileCall::kMakeFolder, 1, EACCES});
  std::atomic<int> told = 0;
  for_each_rank(3, [&](Communicator& comm) {
    const std::string error = message_of([&] { run.save(files, comm, 10); });
    EXPECT_EQ(error, "rank 0: cannot make folder /run/step-00000010: Permission denied");
    ++told;
  });
  EXPECT_EQ(told, 3);
}

TEST(Checkpointer, ReportsABackgroundErrorAtTheNextPoll) {
  TestRun run;
  MemoryFileSystem memory;
  run.save(memory, 10);
  FaultyFileSystem files(memory, {FileCall::kSync, 1, ENOSPC});
  for_each_rank(2, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    Checkpointer checkpointer(files, comm, run.options);
    checkpointer.save(run.state(20), run.held(20)[rank]);
    const std::string error = message_of([&] {
      while (!checkpointer.poll()) {
      }
    });
    EXPECT_THAT(error, ::testing::MatchesRegex("rank [01]: cannot sync .*: No space left .*"));
    EXPECT_FALSE(checkpointer.in_flight());
    checkpointer.save(run.state(30), run.held(30)[rank]);  // training goes on
    EXPECT_EQ(checkpointer.finish(), 30);
  });
  EXPECT_THAT(list_steps(memory, "/run"), ElementsAre(30, 10));
  EXPECT_EQ(bytes_under(memory, "step-00000020"), 0U);
}

TEST(Checkpointer, RefusesADiskThatIsTooSmallBeforeItWrites) {
  TestRun run;
  MemoryFileSystem files;
  run.save(files, 10);
  files.set_free_bytes(100);
  EXPECT_THAT(message_of([&] { run.save(files, 20); }), HasSubstr("no space in /run"));
  EXPECT_EQ(run.load(files), 10);
}

TEST(Checkpointer, Case067ASnapshotIsOfTheStepItIsMadeBehind) {
  TestRun run;
  MemoryFileSystem memory;
  FaultyFileSystem files(memory);
  Gate gate(files);
  for_each_rank(2, [&](Communicator& comm) {
    const auto held = run.held(10)[static_cast<std::size_t>(comm.rank())];
    TrainingState state = run.state(10);
    Checkpointer checkpointer(files, comm, run.options);
    checkpointer.save(state, held);
    checkpointer.await_copy();
    for (int step = 11; step <= 13; ++step) {
      for (const HeldPiece& piece : held) {
        at::Tensor values = piece.values;
        values.fill_(step);
      }
      state.step = state.optimizer_steps = step;
      EXPECT_EQ(checkpointer.poll(), std::nullopt);
    }
    comm.barrier().wait();
    gate.open();
    EXPECT_EQ(checkpointer.finish(), 10);
  });
  EXPECT_EQ(run.load(memory), 10);
}

// So large that values changed without waiting would reach the file.
TEST(Checkpointer, Case067ValuesMayChangeOnceTheyAreCopied) {
  const std::vector<std::int64_t> shape{4096, 4096};
  MemoryFileSystem files;
  for_each_rank(2, [&](Communicator& comm) {
    const Range own = piece(shape[0], 2, comm.rank());
    at::Tensor values = at::full({own.size(), shape[1]}, 10.0, at::kFloat);
    const std::vector<HeldPiece> held{
        {{"w", "weight"}, shape, {{own.begin, 0}, {own.size(), shape[1]}}, values}};
    Checkpointer checkpointer(files, comm, {.folder = "/run"});
    for (const int step : {10, 11}) {
      values.fill_(step);
      checkpointer.save({.step = step}, held);
      checkpointer.await_copy();
      values.fill_(-1.0);
      EXPECT_EQ(checkpointer.finish(), step);
      load_checkpoint(files, comm, std::filesystem::path("/run") / step_folder_name(step), held);
      EXPECT_EQ(values.eq(step).all().item<bool>(), true) << "step " << step;
    }
  });
}

TEST(Checkpointer, Case068EverySnapshotIsANewOne) {
  TestRun run;
  run.options.keep = 10;
  TestRun twin = run;
  twin.options.folder = "/twin";
  twin.options.async = false;
  MemoryFileSystem files;
  for_each_rank(2, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    Checkpointer async(files, comm, run.options);
    Checkpointer sync(files, comm, twin.options);
    const auto held = run.held(0)[rank];
    for (const std::int64_t step : {1, 2, 3}) {
      if (step == 2) {  // the buffer of step 1 is too small now
        auto more = held;
        more.push_back({{"more", "weight"}, {64, 64}, {{0, 0}, {64, 64}}, at::full({64, 64}, 1.5)});
        async.save(run.state(100), more);
      }
      const auto now = run.held(step)[rank];
      for (std::size_t i = 0; i < held.size(); ++i) {
        at::Tensor values = held[i].values;
        values.copy_(now[i].values);
      }
      async.save(run.state(step), held);
      async.await_copy();
      sync.save(run.state(step), held);
    }
    async.finish();
  });
  std::set<std::string> contents;
  for (const std::int64_t step : {1, 2, 3}) {
    const auto a = diff_checkpoints(files, step_path(run, step), step_path(twin, step));
    EXPECT_TRUE(a.empty());
    contents.insert(files.files().at(step_path(run, step) / "rank-00000.safetensors"));
  }
  EXPECT_EQ(contents.size(), 3U);
}

TEST(Checkpointer, Case070NoRankWritesOrKeepsMoreThanItsShare) {
  constexpr int kRanks = 16;
  const std::vector<std::int64_t> shape{512, 512};
  MemoryFileSystem files;
  for_each_rank(kRanks, [&](Communicator& comm) {
    std::vector<HeldPiece> held;
    for (int i = 0; i < 8; ++i) {  // replicated, and a shard each
      held.push_back(
          {{fmt::format("w{}", i), "weight"}, shape, {{0, 0}, shape}, at::full(shape, i)});
      const Range own = piece(shape[0], kRanks, comm.rank());
      held.push_back({{fmt::format("w{}", i), "exp_avg"},
                      shape,
                      {{own.begin, 0}, {own.size(), shape[1]}},
                      at::full({own.size(), shape[1]}, i)});
    }
    Checkpointer checkpointer(files, comm, {.folder = "/run"});
    checkpointer.save({.step = 1}, held);
    checkpointer.finish();
  });
  const auto total = static_cast<std::int64_t>(bytes_under(files, ".safetensors"));
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto own = static_cast<std::int64_t>(bytes_under(files, rank_file_name(rank)));
    EXPECT_LE(own, total / kRanks + kPartBytes + 1024);
  }
}

// Ranks compute without autograd; their background threads know nothing of that.
TEST(Checkpointer, TakesTensorsOfInferenceMode) {
  for (const bool async : {true, false}) {
    TestRun run;
    run.options.async = async;
    MemoryFileSystem files;
    for_each_rank(2, [&](Communicator& comm) {
      const c10::InferenceMode guard;
      run.save(files, comm, 10);
      const auto into = testing::empty_copy(run.held(0)[static_cast<std::size_t>(comm.rank())]);
      EXPECT_EQ(load_newest(files, comm, "/run", into)->step, 10);
    });
    EXPECT_EQ(run.load(files), 10);
  }
}

TEST(Checkpointer, MakesNoCallsWhileItIsIdle) {
  TestRun run;
  MemoryFileSystem memory;
  FaultyFileSystem files(memory);
  for_each_rank(1, [&](Communicator& comm) {
    Checkpointer checkpointer(files, comm, run.options);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(checkpointer.poll(), std::nullopt);
    EXPECT_EQ(checkpointer.finish(), std::nullopt);
  });
  EXPECT_EQ(files.calls(FileCall::kList), 0);
}

}  // namespace
}  // namespace quatrain
