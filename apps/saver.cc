// SPDX-License-Identifier: Apache-2.0
// See saver.h.
#include "apps/saver.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <limits>
#include <utility>

#include "apps/agreed.h"
#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/engine/saved_state.h"
#include "quatrain/kernels/check.h"
#include "quatrain/kernels/memory.h"

namespace quatrain::apps {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

CheckpointOptions options_of(const RunConfig& config) {
  const std::int64_t all = std::numeric_limits<int>::max();
  const std::int64_t keep = config.checkpoint.keep == 0 ? all : config.checkpoint.keep;
  return {.folder = checkpoints_of(config),
          .keep = static_cast<int>(std::min(keep, all)),
          .async = config.checkpoint.async};
}

}  // namespace

std::filesystem::path checkpoints_of(const RunConfig& config) {
  return std::filesystem::path(config.run.folder) / "checkpoints";
}

RunSaver::RunSaver(const RunConfig& config, RankJob& job, Communicator& world, Console& console)
    : config_(config), job_(job), world_(world), console_(console) {
  checkpointer_.emplace(files_, world, options_of(config));
  pieces_ = state_pieces(job.units, *job.optimizer);
}

void RunSaver::save(TrainingState state) {
  const std::int64_t step = state.step;
  state.seed = config_.run.seed;
  state.optimizer_steps = job_.optimizer->steps_done();
  state.plan = to_json(job_.plan);
  state.plan_hash = hash(job_.plan);
  state.library = std::string("quatrain ") + QUATRAIN_VERSION;
  state.extra[kConfigEntry] = to_toml(config_);
  attempt(false, [&] { return checkpointer_->finish(); });
  began_ = now();
  waited_ = 0.0;
  started_ = step;
  copy_unawaited_ = true;
  attempt(false, [&] {
    const ScopedMemoryCategory category(MemoryCategory::kBuffers);  // copies of what is written
    return checkpointer_->save(state, pieces_);
  });
}

void RunSaver::before_update() {
  const double begin = now();
  checkpointer_->await_copy();
  waited_ += now() - begin;
  copy_unawaited_ = false;
}

void RunSaver::poll() {
  CHECK(!copy_unawaited_, "weights were updated while a checkpoint may have been copying them");
  attempt(false, [&] { return checkpointer_->poll(); });
}

void RunSaver::finish(TrainingState state) {
  const std::int64_t step = state.step;
  if (started_ != step) save(std::move(state));
  attempt(true, [&] { return checkpointer_->finish(); });
  if (started_ == step) return;
  throw AgreedError(std::make_exception_ptr(
      StorageError(fmt::format("step {} has no checkpoint: the reason is above", step))));
}

// Storage errors of a save are the same on every rank.
void RunSaver::attempt(bool last, const std::function<std::optional<std::int64_t>()>& f) {
  const double begin = now();
  try {
    const std::optional<std::int64_t> done = f();
    waited_ += now() - begin;
    said(done);
  } catch (const StorageError& error) {
    started_.reset();
    if (last || config_.checkpoint.on_error == "stop") throw AgreedError(std::current_exception());
    if (world_.rank() == 0) {
      log_error(
          fmt::format("no checkpoint: {}; training goes on (checkpoint.on_error)", error.what()));
    }
  }
}

void RunSaver::said(std::optional<std::int64_t> step) {
  if (!step) return;
  console_.line(fmt::format("checkpoint of step {}  {} in {:.2f} s (training waited {:.2f} s)  {}",
                            *step, human_bytes(checkpointer_->bytes()), now() - began_, waited_,
                            (checkpoints_of(config_) / step_folder_name(*step)).string()));
}

}  // namespace quatrain::apps
