// SPDX-License-Identifier: Apache-2.0
// See dry_run.h.
#include "apps/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/job.h"
#include "quatrain/base/text.h"
#include "quatrain/cost/walk.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/spec/parameters.h"

namespace quatrain::apps {
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

// What all units keep of one micro-batch, after its forward.
Bytes stash_bytes(const RunConfig& config) {
  Bytes sum{};
  for (const UnitCost& unit : walk(config.model, work_shape(config))) sum += unit.stash();
  return sum;
}

}  // namespace

int dry_run(const RunConfig& config, Console& console) {
  const auto tokenizer = tokenizer_of(config);
  sources_of(config.data.train, config, tokenizer.get());
  sources_of(config.data.validation, config, tokenizer.get());

  const Plan plan = make_plan(config);
  const Mesh mesh(plan.degrees, plan.axis_order, 0);
  const StateBytes state = state_bytes(config.model, plan, config.optimizer.name,
                                       config.optimizer.momentum, config.training.trainable);
  const Bytes activations = stash_bytes(config);
  const Flops flops = model_flops(config.model, config.training.global_batch,
                                  config.training.seq_len, config.training.trainable);
  const auto human = [](Bytes b) { return human_bytes(b.value); };

  console.line(fmt::format("model     {}  {} parameters", config.model.name,
                           with_commas(num_parameters(config.model))));
  console.line(fmt::format("layout    {}", mesh.to_string()));
  console.line(fmt::format("plan      {}  {}, {} micro-batches of {} x {} tokens", hash(plan),
                           plan.schedule, plan.num_microbatches, plan.microbatch_size,
                           plan.seq_len));
  console.line(fmt::format("a rank    params {}, grads {}, optimizer {}, activations {}",
                           human(state.params), human(state.grads), human(state.optimizer),
                           human(activations)));
  console.line(fmt::format("a step    {:.3g} FLOPs of matrix products", flops.value));

  nlohmann::ordered_json document;
  document["world"] = mesh.world_size();
  document["plan"] = nlohmann::ordered_json::parse(to_json(plan));
  document["hash"] = hash(plan);
  document["bytes_per_rank"] = {{"params", state.params.value},
                                {"grads", state.grads.value},
                                {"optimizer", state.optimizer.value},
                                {"activations", activations.value},
                                {"buffers", 0}};
  document["comm_bytes_per_step"] = nlohmann::ordered_json::object();
  document["flops_per_step"] = flops.value;
  console.document(document);
  return 0;
}

}  // namespace quatrain::apps
