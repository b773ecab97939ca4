// SPDX-License-Identifier: Apache-2.0
// A run of a few ranks whose tensors have other bits at every step, for tests of saves and loads.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/checkpoint/checkpointer.h"
#include "quatrain/checkpoint/load.h"
#include "quatrain/checkpoint/testing/random_job.h"

namespace quatrain::testing {

struct TestRun {
  std::uint64_t seed = 1;
  int ranks = 2;
  JobShape shape = {};
  CheckpointOptions options = {.folder = "/run"};

  std::vector<WholeTensor> tensors(std::int64_t step) const;  // the same shapes at every step
  // By rank, the same boxes at every step; `cut` chooses another geometry.
  std::vector<std::vector<HeldPiece>> held(std::int64_t step, std::uint64_t cut = 0,
                                           int ranks = 0) const;
  TrainingState state(std::int64_t step) const;

  // Saves and finishes, as thread ranks. Throws what the save throws.
  void save(FileSystem& files, std::int64_t step) const;
  void save(FileSystem& files, Communicator& comm, std::int64_t step) const;
  // Loads the newest under another cut; the step that was loaded, none when there is none.
  std::optional<std::int64_t> load(FileSystem& files, std::uint64_t cut = 7, int ranks = 1) const;
};

std::filesystem::path step_path(const TestRun& run, std::int64_t step);

}  // namespace quatrain::testing
