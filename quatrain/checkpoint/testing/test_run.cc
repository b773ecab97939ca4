// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/testing/test_run.h"

#include <gtest/gtest.h>

#include <mutex>

#include "quatrain/checkpoint/step_folder.h"

namespace quatrain::testing {

std::vector<WholeTensor> TestRun::tensors(std::int64_t step) const {
  Draws shapes(seed, "shapes");
  std::vector<WholeTensor> tensors = random_tensors(shapes, shape);
  Draws values(seed + static_cast<std::uint64_t>(step) * 1000003, "values");
  for (WholeTensor& tensor : tensors) {
    tensor.values = random_bits(values, tensor.values.sizes().vec(), tensor.values.scalar_type());
  }
  return tensors;
}

std::vector<std::vector<HeldPiece>> TestRun::held(std::int64_t step, std::uint64_t cut,
                                                  int other_ranks) const {
  Draws draws(seed + cut * 7919, "cut");
  return random_cut(draws, tensors(step), other_ranks > 0 ? other_ranks : ranks);
}

TrainingState TestRun::state(std::int64_t step) const {
  return {.step = step,
          .tokens = step * 4096,
          .seed = seed,
          .optimizer_steps = step,
          .data_cursor = {step * 8, step * 3},
          .plan = R"({"zero": 1})",
          .plan_hash = "0123456789abcdef",
          .library = "quatrain test",
          .extra = {{"loss", "0x1.8p+1"}}};
}

void TestRun::save(FileSystem& files, Communicator& comm, std::int64_t step) const {
  Checkpointer checkpointer(files, comm, options);
  checkpointer.save(state(step), held(step)[static_cast<std::size_t>(comm.rank())]);
  checkpointer.finish();
}

void TestRun::save(FileSystem& files, std::int64_t step) const {
  for_each_rank(ranks, [&](Communicator& comm) { save(files, comm, step); });
}

std::optional<std::int64_t> TestRun::load(FileSystem& files, std::uint64_t cut,
                                          int other_ranks) const {
  const auto wanted = held(0, cut, other_ranks);
  std::vector<std::vector<HeldPiece>> loaded;
  for (const auto& pieces : wanted) loaded.push_back(empty_copy(pieces));
  std::optional<TrainingState> found;
  std::mutex mutex;
  for_each_rank(other_ranks, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    std::optional<TrainingState> own = load_newest(files, comm, options.folder, loaded[rank]);
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) found = std::move(own);
  });
  if (!found) return std::nullopt;
  EXPECT_EQ(*found, state(found->step));
  const std::vector<WholeTensor> right = tensors(found->step);
  for (const auto& pieces : loaded) {
    EXPECT_EQ(wrong_piece(pieces, right), "") << "step " << found->step << ", seed " << seed;
  }
  return found->step;
}

std::filesystem::path step_path(const TestRun& run, std::int64_t step) {
  return run.options.folder / step_folder_name(step);
}

}  // namespace quatrain::testing
