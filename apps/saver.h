// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run: what goes into one, and what happens when one cannot be written.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/console.h"
#include "quatrain/checkpoint/checkpointer.h"
#include "quatrain/engine/job.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {

std::filesystem::path checkpoints_of(const RunConfig& config);

// Names of TrainingState::extra: what a run wants to know again that tensors and counters do not
// say.
inline constexpr const char* kConfigEntry = "config";  // the resolved TOML
inline constexpr const char* kDataEntry = "data";      // [[path, tokens], ...]
inline constexpr const char* kFirstLossEntry = "first_loss";
inline constexpr const char* kLrTokensEntry = "lr_step_tokens";
// Of a model that came from a Hugging Face folder:
inline constexpr const char* kHubConfigEntry = "hub_config";  // its config.json
inline constexpr const char* kHubFolderEntry = "hub_folder";  // where it was

// Every rank has one and makes the same calls, between steps.
class RunSaver {
 public:
  // All of it outlives this. `data`: entry kDataEntry.
  RunSaver(const RunConfig& config, RankJob& job, Communicator& world, Console& console);

  // Starts the checkpoint of state.step, which gets the plan's and the optimizer's part here, or
  // makes it when checkpoints are not asynchronous.
  void save(TrainingState state);
  // Before each update of weights: waits until the checkpoint in flight has its copy.
  void before_update();
  // Once a step: says when one is complete.
  void poll();
  // The checkpoint of the last step, when it has none, and the end of the one in flight. What
  // cannot be written now is an AgreedError whatever checkpoint.on_error says.
  void finish(TrainingState state);

 private:
  void attempt(bool last, const std::function<std::optional<std::int64_t>()>& f);
  void said(std::optional<std::int64_t> step);

  const RunConfig& config_;
  RankJob& job_;
  Communicator& world_;
  Console& console_;
  PosixFileSystem files_;
  std::optional<Checkpointer> checkpointer_;
  std::vector<HeldPiece> pieces_;
  std::optional<std::int64_t> started_;  // step of the last one
  double began_ = 0.0;                   // seconds
  double waited_ = 0.0;                  // by training
  bool copy_unawaited_ = false;          // since save(): no update has waited for the copy
};

}  // namespace quatrain::apps
