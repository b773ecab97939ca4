// SPDX-License-Identifier: Apache-2.0
// A checkpoint into the ranks of a job, whatever geometry saved it. Collective: every rank of
// `comm` calls with the pieces that it wants, and all of them go on or fail together, with the same
// error.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quatrain/checkpoint/file_system.h"
#include "quatrain/checkpoint/piece.h"
#include "quatrain/comm/communicator.h"

namespace quatrain {

struct RestoreOptions {
  // Whether the checkpoint may hold what no rank wants: moments that a fresh optimizer does not
  // read, layers of a larger model.
  bool allow_extra = false;
  std::map<std::string, std::string> rename = {};  // parameter to its name in the checkpoint
};

// Fills the values of every piece (=). DataError, the same on every rank, when the checkpoint is
// damaged or is not that of these tensors: then with counts and nearest names, and nothing read.
TrainingState load_checkpoint(FileSystem& files, Communicator& comm,
                              const std::filesystem::path& checkpoint,
                              std::span<const HeldPiece> into, const RestoreOptions& options = {});

// The newest checkpoint of a run that is whole; a warning in rank 0's log for each newer one that
// is not. None when the run has none; DataError when all of them are damaged.
std::optional<TrainingState> load_newest(FileSystem& files, Communicator& comm,
                                         const std::filesystem::path& run,
                                         std::span<const HeldPiece> into,
                                         const RestoreOptions& options = {});

// How a checkpoint differs from the tensors that a job wants, as a refusal for people; empty when
// it does not.
std::string misfit(const Manifest& manifest, std::span<const PieceInfo> wanted, bool allow_extra);

}  // namespace quatrain
