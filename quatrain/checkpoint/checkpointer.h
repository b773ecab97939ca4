// SPDX-License-Identifier: Apache-2.0
// Saves the state of a job, step by step, into one folder. Every rank writes what it owns into a
// file of its own; when all files are durable rank 0 writes the manifest, which makes the folder a
// checkpoint, and removes old ones.
//
// Asynchronous saves return at once. A thread of the rank copies the state and writes the copy,
// another of rank 0 the manifest; they make no collective call. Training goes on, waits for the
// copy before it changes a value (a step only reads weights and moments until its update), and
// polls once a step; the ranks agree then whether all have written.
//
// Collective: every rank of `comm` makes the same calls in the same order, with the same state. An
// error of any rank is thrown on all of them, as its kind, naming the rank.
// Threads: a Checkpointer belongs to its rank's thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "quatrain/checkpoint/background_task.h"
#include "quatrain/checkpoint/file_system.h"
#include "quatrain/checkpoint/manifest.h"
#include "quatrain/checkpoint/piece.h"
#include "quatrain/checkpoint/rank_file.h"
#include "quatrain/comm/communicator.h"

namespace quatrain {

struct CheckpointOptions {
  std::filesystem::path folder;  // of the run's checkpoints; made when it is not there
  int keep = 2;                  // newest ones kept; at least two
  bool async = true;
};

class Checkpointer {
 public:
  // `files` and `comm` outlive it. Not collective.
  Checkpointer(FileSystem& files, Communicator& comm, CheckpointOptions options);
  // Waits for the rank's own thread. A save that was not finished leaves no checkpoint.
  ~Checkpointer() = default;

  // Starts, or without `async` makes, the checkpoint of state.step; one of that step that is there
  // is replaced. Finishes the save before. `held`: all that this rank holds, in the same order each
  // time; its values stay as they are until await_copy() returns. Memory: asynchronous saves keep
  // one copy of what this rank writes.
  // StorageError when a file cannot be written: then nothing is left of this save, and the
  // checkpoints before it stand.
  // Returns as poll().
  std::optional<std::int64_t> save(const TrainingState& state, std::span<const HeldPiece> held);
  // Before values are changed: waits until the save in flight, if there is one, needs them no more.
  // Not collective.
  void await_copy() const { copied_.wait(false); }
  // Once a step: the step whose checkpoint was found complete in this call. Throws what went wrong
  // in the background. Costs nothing while no save is in flight, else one small all_reduce.
  std::optional<std::int64_t> poll();
  // Waits for the save in flight. The same, and at the end of a run.
  std::optional<std::int64_t> finish();
  bool in_flight() const { return phase_ != Phase::kIdle; }
  std::int64_t bytes() const { return total_bytes_; }  // of a checkpoint, all ranks' files

 private:
  enum class Phase : std::uint8_t { kIdle, kWriting, kCommitting };

  void plan(std::span<const HeldPiece> held);
  void prepare(std::int64_t step);
  void start(std::function<void()> f);
  std::optional<std::int64_t> advance();
  void copy();
  void commit(const std::vector<std::string>& parts);
  std::filesystem::path step_path() const;

  FileSystem& files_;
  Communicator& comm_;
  CheckpointOptions options_;
  std::optional<std::vector<PieceInfo>> planned_;  // what owned_ was made for
  std::vector<OwnedBox> owned_;                    // by this rank
  std::int64_t total_bytes_ = 0;                   // of all ranks' files
  Snapshot snapshot_;
  std::atomic<bool> copied_{true};
  Phase phase_ = Phase::kIdle;
  std::int64_t step_ = 0;          // in flight
  std::vector<FilePiece> pieces_;  // of the file being written
  Manifest part_;                  // what this rank has written
  BackgroundTask task_;            // last: it uses the others
};

}  // namespace quatrain
