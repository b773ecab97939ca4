// SPDX-License-Identifier: Apache-2.0
#include "tests/resume/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "quatrain/checkpoint/checkpointer.h"
#include "quatrain/checkpoint/inspect.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/saved_state.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

constexpr int kSaved = 2;  // steps before the checkpoint
constexpr int kSteps = 5;  // in all
constexpr double kTolerance = 1e-12;

fs::path run_of(const Geometry& geometry) {
  std::string name = geometry.name();
  std::replace(name.begin(), name.end(), '/', '-');
  return fs::path("/runs") / name;
}

void save_state(FileSystem& files, Communicator& world, const fs::path& run, RankJob& job,
                const TrainingState& state) {
  Checkpointer checkpointer(files, world, {.folder = run, .async = false});
  checkpointer.save(state, state_pieces(job.units, *job.optimizer));
}

std::string difference_text(const CheckpointDifference& difference) {
  std::string text;
  for (const std::string& line : difference.state) text += line + "; ";
  for (const TensorDifference& tensor : difference.tensors) {
    text += fmt::format("{}: {}; ", to_string(tensor.id), tensor.what);
  }
  return text;
}

}  // namespace

std::vector<Geometry> resume_geometries() {
  return {
      {},
      {.shards = 2},
      {.shards = 4, .zero_stage = 1},
      {.shards = 2, .zero_stage = 2},
      {.shards = 4, .zero_stage = 3},
      {.shards = 3, .zero_stage = 3},
      {.replicas = 2, .shards = 2, .zero_stage = 1},
      {.replicas = 2, .shards = 3, .zero_stage = 3},
      {.tensor = 2},
      {.tensor = 2, .sequence_parallel = true},
      {.tensor = 4, .sequence_parallel = true},
      {.shards = 2, .zero_stage = 3, .tensor = 2},
      {.accumulation = 4, .schedule = "1f1b", .pipeline = 2},
      {.accumulation = 4, .schedule = "zb-h2", .pipeline = 4},
      {.accumulation = 4, .schedule = "gpipe", .pipeline = 2, .layers = {3, 1}},
      {.accumulation = 4, .schedule = "interleaved-1f1b", .pipeline = 2, .chunks = 2},
      {.accumulation = 4, .schedule = "zb-v", .pipeline = 2, .chunks = 2},
      {.shards = 2, .zero_stage = 1, .accumulation = 4, .schedule = "zb-h1", .pipeline = 2},
      {.accumulation = 4, .schedule = "dualpipe-v", .pipeline = 2, .chunks = 2},
      {.accumulation = 4, .schedule = "1f1b", .tensor = 2, .pipeline = 2},
      {.shards = 2,
       .zero_stage = 3,
       .accumulation = 4,
       .schedule = "interleaved-1f1b",
       .tensor = 2,
       .pipeline = 2,
       .chunks = 2},
      {.accumulation = 4, .schedule = "zb-h1", .pipeline = 3, .layers = {2, 1, 1}},
      {.replicas = 2,
       .shards = 2,
       .zero_stage = 2,
       .accumulation = 4,
       .schedule = "zb-v",
       .pipeline = 2,
       .chunks = 2},
      {.shards = 2, .zero_stage = 3, .accumulation = 4, .schedule = "zb-h1", .pipeline = 4},
  };
}

std::vector<Geometry> expert_resume_geometries() {
  return {
      {},
      {.shards = 2, .zero_stage = 3},
      {.shards = 2, .zero_stage = 3, .ep = 2, .etp = 1},
      {.shards = 4, .zero_stage = 1, .ep = 4, .etp = 1},
      {.tensor = 2, .sequence_parallel = true},
      {.shards = 2, .zero_stage = 3, .tensor = 2, .sequence_parallel = true, .ep = 1, .etp = 1},
      {.replicas = 2, .shards = 2, .zero_stage = 2, .tensor = 2, .ep = 2, .etp = 1},
      {.shards = 2,
       .zero_stage = 1,
       .accumulation = 4,
       .schedule = "zb-v",
       .tensor = 2,
       .pipeline = 2,
       .chunks = 2,
       .ep = 4,
       .etp = 1},
  };
}

ResumePairs::ResumePairs(Recipe recipe) : recipe_(std::move(recipe)) {
  recipe_.steps = kSteps;
  whole_ = run_on_threads(recipe_, {});
}

TrainingState ResumePairs::state(const RankJob& job) const {
  TrainingState state;
  state.step = kSaved;
  state.tokens = kSaved * recipe_.global_batch * recipe_.seq;
  state.seed = (std::uint64_t{1} << 63U) + 3;
  state.optimizer_steps = job.optimizer->steps_done();
  state.data_cursor = {kSaved * recipe_.global_batch, 5};
  keep_router_loads(state, job.executor);
  return state;
}

void ResumePairs::save(const Geometry& from, FileSystem& files, Communicator& world) const {
  GeometryJob job(recipe_, from, world);
  for (int step = 1; step <= kSaved; ++step) job.step(step);
  save_state(files, world, run_of(from), job, state(job));
}

std::string ResumePairs::fault(const Geometry& from, const Geometry& to, FileSystem& files,
                               Communicator& world) const {
  const fs::path saved = run_of(from) / step_folder_name(kSaved);
  const fs::path again = "/again";
  GeometryJob job(recipe_, to, world);
  TrainingState state =
      load_checkpoint(files, world, saved, state_pieces(job.units, *job.optimizer));
  take_up(job.units, *job.optimizer, state);
  take_up_router_loads(state, recipe_.spec, job.executor);
  state.optimizer_steps = job.optimizer->steps_done();
  save_state(files, world, again, job, state);
  std::vector<double> losses;
  for (int step = kSaved + 1; step <= kSteps; ++step) losses.push_back(job.step(step).loss);
  const NamedTensors weights = whole_weights(job.units);
  if (world.rank() != 0) return "";
  std::string text =
      difference_text(diff_checkpoints(files, saved, again / step_folder_name(kSaved)));
  if (recipe_.dtype != Dtype::kFloat64) return text;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double error = relative_error(losses[i], whole_.losses.at(kSaved + i));
    worst_ = std::max(worst_, error);
    if (!(error <= kTolerance)) text += fmt::format("loss of step {}: {}; ", kSaved + i + 1, error);
  }
  const TensorError weight = compare(weights, whole_.weights.back()).front();
  worst_ = std::max(worst_, weight.max_rel);
  if (!(weight.max_rel <= kTolerance)) {
    text += fmt::format("weight {}: {}", weight.name, weight.max_rel);
  }
  return text;
}

void ResumePairs::save(const Geometry& from) {
  run_thread_ranks(from.ranks(), {},
                   [&](std::unique_ptr<Communicator> world) { save(from, files_, *world); });
}

std::string ResumePairs::fault(const Geometry& from, const Geometry& to) {
  std::string text;
  run_thread_ranks(to.ranks(), {}, [&](std::unique_ptr<Communicator> world) {
    const std::string own = fault(from, to, files_, *world);
    if (world->rank() == 0) text = own;
  });
  return text;
}

}  // namespace quatrain
