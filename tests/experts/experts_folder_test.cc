// SPDX-License-Identifier: Apache-2.0
// Experts from a Hugging Face folder onto the ranks of a geometry.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>

#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/hub/hub.h"
#include "quatrain/hub/testing/fused_experts.h"
#include "tests/experts/grid.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

// Every expert's matrices hold its number.
void number_experts(Model& model) {
  for (const auto& unit : model.units()) {
    for (Param& param : unit->params()) {
      if (param.info.expert >= 0) param.value.fill_(static_cast<double>(param.info.expert + 1));
    }
  }
}

LoadOptions into(ZeroUnits& units) {
  LoadOptions options;
  options.open = [&](ParamUnit& unit) { units.open_values(unit); };
  options.close = [&](ParamUnit& unit) { units.keep_values(unit); };
  return options;
}

// The same model, the experts of a layer in two tensors.
void fuse(const fs::path& folder, const ModelSpec& spec) {
  testing::Tensors tensors;
  {
    const SafetensorsFile file(folder / "model.safetensors");
    for (const TensorEntry& entry : file.header().tensors) {
      tensors[entry.name] = file.tensor(entry.name);
    }
  }
  const testing::Tensors fused = testing::fused_experts(tensors, spec);
  write_safetensors(folder / "model.safetensors", {fused.begin(), fused.end()});
}

// Every geometry's ranks, together, hold what the folder was written from.
void expect_loaded(const fs::path& folder, const Model& whole) {
  std::mutex mutex;
  for (const Geometry& geometry :
       {Geometry{.shards = 2, .zero_stage = 3},
        {.tensor = 2},
        {.shards = 2, .zero_stage = 3, .tensor = 2, .sequence_parallel = true}}) {
    run_thread_ranks(geometry.ranks(), {}, [&](std::unique_ptr<Communicator> world) {
      const RankThread prologue({.threads = 1});
      GeometryJob job({.spec = whole.spec()}, geometry, *world);
      load_weights(job.model, folder, into(job.units));
      const NamedTensors got = whole_weights(job.units);
      const std::lock_guard lock(mutex);
      for (const auto& unit : whole.units()) {
        for (const Param& param : unit->params()) {
          EXPECT_TRUE(got.at(param.info.name).equal(param.value)) << param.info.name;
        }
      }
    });
  }
}

TEST(ExpertFolders, case_047_every_rank_reads_its_own_experts) {
  for (const ModelSpec& spec : expert_models()) {
    SCOPED_TRACE(spec.name);
    const fs::path folder =
        fs::temp_directory_path() / fmt::format("quatrain_experts_{}_{}", getpid(), spec.name);
    Model whole(spec, {.dtype = at::kDouble});
    whole.allocate(false);
    whole.initialise(5);
    number_experts(whole);
    save_weights(whole, folder);
    expect_loaded(folder, whole);
    fuse(folder, spec);
    expect_loaded(folder, whole);
    fs::remove_all(folder);
  }
}

}  // namespace
}  // namespace quatrain
