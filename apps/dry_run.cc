// SPDX-License-Identifier: Apache-2.0
// See dry_run.h.
#include "apps/dry_run.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "apps/job.h"
#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/spec/parameters.h"

namespace quatrain::apps {
namespace fs = std::filesystem;
namespace {

WorkShape work_shape(const RunConfig& config) {
  WorkShape shape;
  shape.batch = config.training.micro_batch;
  shape.seq = config.training.seq_len;
  shape.dtype = config.training.dtype;
  shape.recompute = config.training.recompute;
  shape.head_chunk_tokens = config.training.head_chunk_tokens;
  return shape;
}

// A folder below the system's temporary one, gone with its owner.
class ScratchFolder {
 public:
  ScratchFolder() : path_(fs::temp_directory_path() / "quatrain-XXXXXX") {
    std::string name = path_.string();
    if (mkdtemp(name.data()) == nullptr) {
      throw StorageError(fmt::format("cannot make a folder in {}", path_.parent_path().string()));
    }
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Opens all data as training would. Text is tokenized to check it, and the ids thrown away.
void check_data(const RunConfig& config) {
  const ScratchFolder scratch;
  RunConfig elsewhere = config;
  elsewhere.run.folder = (scratch.path() / "run").string();
  const auto tokenizer = tokenizer_of(config);
  sources_of(config.data.train, elsewhere, tokenizer.get());
  sources_of(config.data.validation, elsewhere, tokenizer.get());
}

// What all units keep of one micro-batch, after its forward.
Bytes stash_bytes(const RunConfig& config) {
  Bytes sum{};
  for (const UnitCost& unit : walk(config.model, work_shape(config))) sum += unit.stash();
  return sum;
}

}  // namespace

StateBytes state_bytes_of(const RunConfig& config, int rank) {
  return state_bytes(config.model, make_plan(config), config.optimizer.name,
                     config.optimizer.momentum, config.training.trainable, rank);
}

void print_layout(const RunConfig& config, Console& console) {
  const Plan plan = make_plan(config);
  const Mesh mesh(plan.degrees, plan.axis_order, 0);
  const StateBytes state = state_bytes_of(config);
  const auto human = [](Bytes b) { return human_bytes(b.value); };
  console.line(fmt::format("model     {}  {} parameters", config.model.name,
                           with_commas(num_parameters(config.model))));
  console.line(fmt::format("layout    {}", mesh.to_string()));
  console.line(fmt::format("plan      {}  {}, {} micro-batches of {} x {} tokens", hash(plan),
                           plan.schedule, plan.num_microbatches, plan.microbatch_size,
                           plan.seq_len));
  console.line(fmt::format("a rank    params {}, grads {}, optimizer {}, activations {}",
                           human(state.params), human(state.grads), human(state.optimizer),
                           human(stash_bytes(config))));
}

int dry_run(const RunConfig& config, Console& console) {
  check_data(config);
  const Plan plan = make_plan(config);
  const StateBytes state = state_bytes_of(config);
  const Flops flops = model_flops(config.model, config.training.global_batch,
                                  config.training.seq_len, config.training.trainable);
  print_layout(config, console);
  console.line(fmt::format("a step    {:.3g} FLOPs of matrix products", flops.value));

  nlohmann::ordered_json document;
  document["world"] = Mesh(plan.degrees, plan.axis_order, 0).world_size();
  document["plan"] = nlohmann::ordered_json::parse(to_json(plan));
  document["hash"] = hash(plan);
  document["bytes_per_rank"] = {{"params", state.params.value},
                                {"grads", state.grads.value},
                                {"optimizer", state.optimizer.value},
                                {"activations", stash_bytes(config).value},
                                {"buffers", 0}};
  document["comm_bytes_per_step"] = nlohmann::ordered_json::object();
  document["flops_per_step"] = flops.value;
  console.document(document);
  return 0;
}

}  // namespace quatrain::apps
