// SPDX-License-Identifier: Apache-2.0
// See dry_run.h.
#include "apps/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "apps/job.h"
#include "quatrain/base/error.h"
#include "quatrain/base/scratch_folder.h"
#include "quatrain/base/text.h"
#include "quatrain/cost/lower.h"
#include "quatrain/cost/peaks.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/spec/parameters.h"

namespace quatrain::apps {
namespace {

WorkShape work_shape_of(const RunConfig& config, int rank) {
  WorkShape shape = work_shape(make_plan(config), rank);
  shape.head_chunk_tokens = config.training.head_chunk_tokens;
  shape.trainable = config.training.trainable;
  shape.global_balance = config.training.router_balance == "global_batch";
  return shape;
}

// Opens all data as training would. Text is tokenized to check it, and the ids thrown away.
void check_data(const RunConfig& config) {
  const ScratchFolder scratch;
  RunConfig elsewhere = config;
  elsewhere.run.folder = (scratch.path() / "run").string();
  const auto tokenizer = tokenizer_of(config);
  sources_of(config.data.train, elsewhere, tokenizer.get());
  sources_of(config.data.validation, elsewhere, tokenizer.get());
}

// What one rank holds: always, and for a while.
struct RankBytes {
  StateBytes state{};
  RowPeaks peaks{};
  Bytes grads() const { return state.grads + peaks.whole_grads; }
  Bytes total() const {
    return state.params + grads() + state.optimizer + peaks.activations + peaks.buffers;
  }
};

struct Prediction {
  RankBytes fullest;  // of the rank that holds most
  WireCosts wire;     // by group and operation, the most that a rank sends in a step
};

// Ranks that may differ: at each place along pp, tp and among the experts one of each piece of what
// is cut over data ranks, by place.
std::map<std::vector<int>, std::vector<int>> ranks_by_place(const Mesh& mesh) {
  std::map<std::vector<int>, std::vector<int>> ranks;
  std::set<std::vector<int>> seen;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const Mesh at = mesh.with_rank(rank);
    std::vector<int> place;
    for (const Axis axis : {Axis::kPp, Axis::kCp, Axis::kTp, Axis::kEp, Axis::kEtp}) {
      place.push_back(at.coord(axis));
    }
    std::vector<int> piece = place;
    for (const Axis axis : {Axis::kDpShard, Axis::kEdpShard}) piece.push_back(at.coord(axis));
    if (seen.insert(piece).second) ranks[place].push_back(rank);
  }
  return ranks;
}

// What a row makes ranks at one place hold and send is the same but for the sums of their own
// pieces.
Prediction predict(const RunConfig& config) {
  const Plan plan = make_plan(config);
  const Schedule schedule = schedule_of(config);
  Prediction result;
  const Mesh mesh(plan.degrees, plan.axis_order, 0);
  for (const auto& [place, ranks] : ranks_by_place(mesh)) {
    ZeroShape shape = zero_shape(config.model, plan, config.training.trainable, ranks.front(),
                                 schedule.rank_of_stage.front());
    const WorkShape work = work_shape_of(config, ranks.front());
    const auto& row = schedule.per_rank[static_cast<std::size_t>(shape.mesh.coord(Axis::kPp))];
    RankBytes bytes;
    bytes.peaks = row_peaks(row, shape, config.model, work);
    WireCosts layers = tensor_wire(row, config.model, work, shape.stages);
    add(layers, message_wire(row, config.model, work));
    for (const int rank : ranks) {
      shape.mesh = mesh.with_rank(rank);
      bytes.state = state_bytes(shape, config.optimizer.name, config.optimizer.momentum);
      if (bytes.total() > result.fullest.total()) result.fullest = bytes;
      WireCosts sent = zero_wire(row, shape);
      add(sent, layers);
      keep_most(result.wire, sent);
    }
  }
  return result;
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

void print(const RunConfig& config, const Prediction& predicted, Console& console) {
  const Plan plan = make_plan(config);
  const Mesh mesh(plan.degrees, plan.axis_order, 0);
  const RankBytes& rank = predicted.fullest;
  const auto human = [](Bytes b) { return human_bytes(b.value); };
  console.line(fmt::format("model     {}  {} parameters", config.model.name,
                           with_commas(num_parameters(config.model))));
  console.line(fmt::format("layout    {}", mesh.to_string()));
  console.line(fmt::format("plan      {}  {}, {} micro-batches of {} x {} tokens", hash(plan),
                           plan.schedule, plan.num_microbatches, plan.microbatch_size,
                           plan.seq_len));
  console.line(
      fmt::format("a rank    params {}, grads {}, optimizer {}, activations {}, buffers {}",
                  human(rank.state.params), human(rank.grads()), human(rank.state.optimizer),
                  human(rank.peaks.activations), human(rank.peaks.buffers)));
  if (const std::string wire = wire_text(predicted.wire); !wire.empty()) {
    console.line("a rank    sends " + wire + " a step");
  }
}

}  // namespace

StateBytes state_bytes_of(const RunConfig& config, int rank) {
  const Plan plan = make_plan(config);
  const ZeroShape shape = zero_shape(config.model, plan, config.training.trainable, rank,
                                     plan_schedule(plan).rank_of_stage.front());
  return state_bytes(shape, config.optimizer.name, config.optimizer.momentum);
}

void print_layout(const RunConfig& config, Console& console) {
  print(config, predict(config), console);
}

int dry_run(const RunConfig& config, Console& console) {
  check_data(config);
  const Plan plan = make_plan(config);
  const Prediction predicted = predict(config);
  const RankBytes& rank = predicted.fullest;
  const Flops flops = model_flops(config.model, config.training.global_batch,
                                  config.training.seq_len, config.training.trainable);
  print(config, predicted, console);
  console.line(fmt::format("a step    {:.3g} FLOPs of matrix products", flops.value));

  nlohmann::ordered_json document;
  document["world"] = Mesh(plan.degrees, plan.axis_order, 0).world_size();
  document["plan"] = nlohmann::ordered_json::parse(to_json(plan));
  document["hash"] = hash(plan);
  document["bytes_per_rank"] = {{"params", rank.state.params.value},
                                {"grads", rank.grads().value},
                                {"optimizer", rank.state.optimizer.value},
                                {"activations", rank.peaks.activations.value},
                                {"buffers", rank.peaks.buffers.value}};
  auto& sent = document["comm_bytes_per_step"] = nlohmann::ordered_json::object();
  for (const auto& [group, operations] : predicted.wire) {
    for (const auto& [operation, cost] : operations) sent[group][operation] = cost.bytes.value;
  }
  document["flops_per_step"] = flops.value;
  console.document(document);
  return 0;
}

}  // namespace quatrain::apps
