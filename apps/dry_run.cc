// SPDX-License-Identifier: Apache-2.0
// See dry_run.h.
#include "apps/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "apps/job.h"
#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/cost/zero.h"
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

ZeroShape zero_shape_of(const RunConfig& config, int rank) {
  return zero_shape(config.model, make_plan(config), config.training.trainable, rank);
}

// Ranks that may differ in what they keep and send: one of each shard.
std::vector<int> shard_ranks(const Mesh& mesh) { return mesh.group(Axis::kDpShard); }

std::int64_t total(const StateBytes& state) {
  return state.params.value + state.grads.value + state.optimizer.value;
}

StateBytes fullest_state(const RunConfig& config) {
  StateBytes most{};
  for (const int rank : shard_ranks(zero_shape_of(config, 0).mesh)) {
    const StateBytes state = state_bytes_of(config, rank);
    if (total(state) > total(most)) most = state;
  }
  return most;
}

// Held for a while beside them: gathered units and logits, whole gradients.
ZeroPeaks peaks_of(const RunConfig& config) {
  const ZeroShape shape = zero_shape_of(config, 0);
  const auto& t = config.training;
  const Bytes head{std::min(t.head_chunk_tokens, t.micro_batch * t.seq_len) * config.model.vocab *
                   size_of(t.dtype)};
  return zero_peaks(schedule_of(config).per_rank[0], shape, stage_units(config.model, shape.units),
                    head);
}

// By group and operation, the most that a rank sends in a step.
WireCosts wire_of(const RunConfig& config) {
  const std::vector<Action> row = schedule_of(config).per_rank[0];
  WireCosts most;
  for (const int rank : shard_ranks(zero_shape_of(config, 0).mesh)) {
    for (const auto& [group, operations] : zero_wire(row, zero_shape_of(config, rank))) {
      for (const auto& [operation, cost] : operations) {
        WireCost& entry = most[group][operation];
        if (cost.bytes >= entry.bytes) entry = cost;
      }
    }
  }
  return most;
}

std::string wire_text(const WireCosts& wire) {
  std::string text;
  for (const auto& [group, operations] : wire) {
    for (const auto& [operation, cost] : operations) {
      text += fmt::format("{}{} {} {} in {} calls", text.empty() ? "" : ", ", group, operation,
                          human_bytes(cost.bytes.value), cost.calls);
    }
  }
  return text;
}

}  // namespace

StateBytes state_bytes_of(const RunConfig& config, int rank) {
  return state_bytes(config.model, make_plan(config), config.optimizer.name,
                     config.optimizer.momentum, config.training.trainable, rank);
}

void print_layout(const RunConfig& config, Console& console) {
  const Plan plan = make_plan(config);
  const Mesh mesh(plan.degrees, plan.axis_order, 0);
  const StateBytes state = fullest_state(config);
  const ZeroPeaks peaks = peaks_of(config);
  const auto human = [](Bytes b) { return human_bytes(b.value); };
  console.line(fmt::format("model     {}  {} parameters", config.model.name,
                           with_commas(num_parameters(config.model))));
  console.line(fmt::format("layout    {}", mesh.to_string()));
  console.line(fmt::format("plan      {}  {}, {} micro-batches of {} x {} tokens", hash(plan),
                           plan.schedule, plan.num_microbatches, plan.microbatch_size,
                           plan.seq_len));
  console.line(
      fmt::format("a rank    params {}, grads {}, optimizer {}, activations {}, buffers {}",
                  human(state.params), human(state.grads + peaks.whole_grads),
                  human(state.optimizer), human(stash_bytes(config)), human(peaks.buffers)));
  if (const std::string wire = wire_text(wire_of(config)); !wire.empty()) {
    console.line("a rank    sends " + wire + " a step");
  }
}

int dry_run(const RunConfig& config, Console& console) {
  check_data(config);
  const Plan plan = make_plan(config);
  const StateBytes state = fullest_state(config);
  const ZeroPeaks peaks = peaks_of(config);
  const Flops flops = model_flops(config.model, config.training.global_batch,
                                  config.training.seq_len, config.training.trainable);
  print_layout(config, console);
  console.line(fmt::format("a step    {:.3g} FLOPs of matrix products", flops.value));

  nlohmann::ordered_json document;
  document["world"] = Mesh(plan.degrees, plan.axis_order, 0).world_size();
  document["plan"] = nlohmann::ordered_json::parse(to_json(plan));
  document["hash"] = hash(plan);
  document["bytes_per_rank"] = {{"params", state.params.value},
                                {"grads", (state.grads + peaks.whole_grads).value},
                                {"optimizer", state.optimizer.value},
                                {"activations", stash_bytes(config).value},
                                {"buffers", peaks.buffers.value}};
  auto& sent = document["comm_bytes_per_step"] = nlohmann::ordered_json::object();
  for (const auto& [group, operations] : wire_of(config)) {
    for (const auto& [operation, cost] : operations) sent[group][operation] = cost.bytes.value;
  }
  document["flops_per_step"] = flops.value;
  console.document(document);
  return 0;
}

}  // namespace quatrain::apps
