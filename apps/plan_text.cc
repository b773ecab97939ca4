// SPDX-License-Identifier: Apache-2.0
#include "apps/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/spec/model_io.h"

namespace quatrain::apps {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

ModelSpec model_of(const std::string& name_or_path) {
  const std::vector<std::string> names = catalog_models();
  fs::path path(name_or_path);
  if (std::find(names.begin(), names.end(), name_or_path) != names.end() || !fs::exists(path)) {
    return catalog_model(name_or_path).spec;
  }
  if (fs::is_directory(path)) path /= "config.json";
  ModelResult result = model_from_hub_json(read_file(path), path.string());
  throw_if_any(result.problems);
  throw_if_any(check(result.spec));
  result.spec.name = name_or_path;
  return result.spec;
}

Json parts_json(const StepParts& p) {
  return {{"compute", p.compute},       {"exposed_tp", p.exposed_tp}, {"exposed_cp", p.exposed_cp},
          {"exposed_ep", p.exposed_ep}, {"exposed_dp", p.exposed_dp}, {"exposed_pp", p.exposed_pp},
          {"bubble", p.bubble},         {"optimizer", p.optimizer},   {"other", p.other}};
}

Json memory_json(const MemoryParts& m) {
  const auto bytes = [](double value) { return static_cast<std::int64_t>(value); };
  return {{"rank", m.rank},
          {"params", bytes(m.params)},
          {"grads", bytes(m.grads)},
          {"optimizer", bytes(m.optimizer)},
          {"activations", bytes(m.activations)},
          {"logits", bytes(m.logits)},
          {"buffers", bytes(m.buffers)},
          {"overhead", bytes(m.overhead)},
          {"total", bytes(m.sum())}};
}

std::string train_toml(const Job& job, const std::string& model, const Geometry& g) {
  std::string text = fmt::format(
      "# {} on {} x {}\n[model]\n{} = \"{}\"\n\n[training]\nseq_len = {}\nmicro_batch = {}\n"
      "global_batch = {}\ndtype = \"{}\"\nrecompute = \"{}\"\n\n[parallel]\ndp_replicate = {}\n"
      "dp_shard = {}\nzero = {}\ntp = {}\nsequence_parallel = {}\npp = {}\nschedule = \"{}\"\n"
      "chunks = {}\ncp = {}\nep = {}\netp = {}\n",
      model, job.gpus, job.cluster.name, fs::exists(model) ? "hf" : "name", model, job.seq,
      g.micro_batch, job.global_batch, name(job.dtype), name(g.recompute), g.dp_replicate,
      g.dp_shard, g.zero, g.tp, g.sequence_parallel, g.pp, g.schedule, g.chunks, g.cp, g.ep, g.etp);
  return text + "\n[data]\ntrain = []  # { path = \"...\", weight = 1.0 }\n";
}

}  // namespace quatrain::apps
