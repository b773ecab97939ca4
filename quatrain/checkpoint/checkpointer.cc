// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/checkpointer.h"

#include <fmt/format.h>

#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/exchange.h"
#include "quatrain/checkpoint/ownership.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/checkpoint/storage.h"

namespace quatrain {

Checkpointer::Checkpointer(FileSystem& files, Communicator& comm, CheckpointOptions options)
    : files_(files), comm_(comm), options_(std::move(options)) {}

std::optional<std::int64_t> Checkpointer::save(const TrainingState& state,
                                               std::span<const HeldPiece> held) {
  const std::optional<std::int64_t> before = finish();
  plan(held);
  prepare(state.step);
  step_ = state.step;
  part_ = {};
  pieces_ = file_pieces(held, owned_);
  if (options_.async) pieces_ = snapshot_.begin(std::move(pieces_));
  phase_ = Phase::kWriting;
  copied_ = !options_.async;
  start([this, state] {
    if (options_.async) copy();
    part_ = write_rank_file(files_, step_path(), comm_.rank(), pieces_);
    part_.state = state;
  });
  return options_.async ? before : finish();
}

std::optional<std::int64_t> Checkpointer::poll() {
  if (phase_ == Phase::kIdle || least_of(comm_, task_.done() ? 1 : 0) == 0) return std::nullopt;
  return advance();
}

std::optional<std::int64_t> Checkpointer::finish() {
  std::optional<std::int64_t> step;
  while (phase_ != Phase::kIdle) {
    task_.wait();
    step = advance();
  }
  return step;
}

// Ranks tell each other what they hold only when that of any of them has changed.
void Checkpointer::plan(std::span<const HeldPiece> held) {
  std::vector<PieceInfo> infos = infos_of(held);
  if (least_of(comm_, infos == planned_ ? 1 : 0) == 1) return;
  std::vector<std::vector<PieceInfo>> all;
  for (const std::string& text : texts_of_all(comm_, to_text(infos))) {
    all.push_back(pieces_from_text(text));
  }
  const std::vector<std::vector<OwnedBox>> owned = assign_writers(all);
  owned_ = owned[static_cast<std::size_t>(comm_.rank())];
  total_bytes_ = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const OwnedBox& own : owned[rank]) {
      total_bytes_ += own.box.numel() * itemsize_of(all[rank][own.place].dtype);
    }
  }
  planned_ = std::move(infos);
}

// An empty folder for this step, durably empty before any rank writes to it.
void Checkpointer::prepare(std::int64_t step) {
  const std::filesystem::path path = options_.folder / step_folder_name(step);
  const Failure failure = first_failure(
      comm_, attempt([&] {
        if (comm_.rank() != 0) return;
        remove_unfinished(files_, options_.folder);
        remove_checkpoint(files_, path);
        make_folders(files_, path);
        const std::int64_t space = files_.free_bytes(path);
        if (space >= 0 && space < total_bytes_) {
          throw StorageError(fmt::format("no space in {} for a checkpoint of {}: {} are free",
                                         options_.folder.string(), human_bytes(total_bytes_),
                                         human_bytes(space)));
        }
      }));
  raise(failure);
}

void Checkpointer::start(std::function<void()> f) {
  if (options_.async) {
    task_.start(std::move(f));
  } else {
    task_.run_here(f);
  }
}

// From one phase to the next, when all ranks' tasks are done.
std::optional<std::int64_t> Checkpointer::advance() {
  const Failure failure = first_failure(comm_, task_.take());
  if (failure) {
    phase_ = Phase::kIdle;
    pieces_.clear();
    if (comm_.rank() == 0) {
      const Failure left = attempt([&] { remove_checkpoint(files_, step_path()); });
      if (left) log_warning("what a failed save has written stays: " + left.text);
    }
    raise(failure);
  }
  if (phase_ == Phase::kCommitting) {
    phase_ = Phase::kIdle;
    return step_;
  }
  pieces_.clear();
  phase_ = Phase::kCommitting;
  std::vector<std::string> parts = texts_on_first(comm_, to_json(part_));
  if (comm_.rank() == 0) start([this, parts = std::move(parts)] { commit(parts); });
  return std::nullopt;
}

void Checkpointer::copy() {
  snapshot_.fill();
  copied_ = true;
  copied_.notify_all();
}

void Checkpointer::commit(const std::vector<std::string>& texts) {
  std::vector<Manifest> parts;
  for (const std::string& text : texts) parts.push_back(manifest_from_json(text));
  const Manifest manifest = merge(std::move(parts));
  check_complete(manifest);
  write_manifest(files_, step_path(), manifest);
  // The checkpoint stands: what cannot be removed now is no failure of this save.
  const Failure old = attempt([&] { remove_old(files_, options_.folder, step_, options_.keep); });
  if (old) log_warning("an old checkpoint cannot be removed: " + old.text);
}

std::filesystem::path Checkpointer::step_path() const {
  return options_.folder / step_folder_name(step_);
}

}  // namespace quatrain
