// SPDX-License-Identifier: Apache-2.0
#include "apps/plan_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/planner/explain.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/toml_document.h"

namespace quatrain::apps {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

// A name or folder where there is one, else the keys.
std::string model_section(const ModelSpec& spec, const std::string& model) {
  std::error_code ignored;
  const fs::path path(model);
  if (fs::is_directory(path, ignored)) return fmt::format("[model]\nhf = \"{}\"\n\n", model);
  if (!fs::exists(path, ignored)) return fmt::format("[model]\nname = \"{}\"\n\n", model);
  std::string text = "[model]\n";
  const nlohmann::json keys = nlohmann::json::parse(to_hub_json(spec));
  for (const auto& [key, value] : keys.items()) {
    if (!value.is_null()) text += fmt::format("{} = {}\n", key, to_toml_value(value));
  }
  return text + "\n";
}

std::string context_keys(const ContextStyle& style) {
  std::string text = fmt::format("cp_style = \"{}\"\n", style.name);
  if (style.name == "hybrid") text += fmt::format("cp_heads = {}\n", style.heads);
  return style.zigzag ? text : text + "cp_balance = \"contiguous\"\n";
}

}  // namespace

void set_dtype(Job& job, std::string_view text) {
  job.fp8_products = text.starts_with("fp8");
  if (text == "bfloat16" || text == "bf16" || job.fp8_products) {
    job.dtype = Dtype::kBFloat16;
  } else if (text == "float32" || text == "fp32") {
    job.dtype = Dtype::kFloat32;
  } else {
    throw ConfigError(
        fmt::format("dtype = \"{}\" is none of bfloat16 (bf16), float32 (fp32), fp8", text));
  }
  if (job.fp8_products && job.cluster.peak_fp8 == 0) {
    throw ConfigError(fmt::format("{} has no fp8 units; dtype = \"bfloat16\"", job.cluster.name));
  }
}

Plan plan_of(const Job& job, const Geometry& geometry) {
  return to_plan(job, geometry, Estimator(job).cut(geometry.stages()));
}

double tokens_per_second(const Job& job, const Estimate& estimate) {
  return static_cast<double>(job.global_batch * job.seq) / estimate.step;
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

Json plan_json(const Job& job, const RankedPlan& ranked) {
  const Plan plan = plan_of(job, ranked.geometry);
  const Estimate& e = ranked.estimate;
  return {{"plan", Json::parse(to_json(plan))},
          {"hash", hash(plan)},
          {"step_s", e.step},
          {"mfu", e.mfu},
          {"peak_bytes", static_cast<std::int64_t>(e.memory.sum())},
          {"why", why(job, ranked)},
          {"summary", to_string(ranked.geometry)},
          {"tokens_per_s_per_gpu", tokens_per_second(job, e) / job.gpus},
          {"parts_s", parts_json(e.parts)},
          {"memory_bytes", memory_json(e.memory)}};
}

std::string train_toml(const Job& job, const std::string& model, const Geometry& g) {
  std::string text = fmt::format("# {}: {}\n# on {} x {}\n", job.model.name, to_string(g), job.gpus,
                                 job.cluster.name);
  text += model_section(job.model, model);
  text += "[data]\ntrain = []  # { path = \"...\", weight = 1.0 }\n\n";
  text += fmt::format(
      "[training]\nseq_len = {}\nmicro_batch = {}\nglobal_batch = {}\ndtype = \"{}\"\n"
      "recompute = \"{}\"\n\n",
      job.seq, g.micro_batch, job.global_batch, name(job.dtype), name(g.recompute));
  text += fmt::format("[parallel]\ndp_replicate = {}\ndp_shard = {}\nzero = {}\ntp = {}\n",
                      g.dp_replicate, g.dp_shard, g.zero, g.tp);
  text += fmt::format("sequence_parallel = {}\ngather_again = {}\npp = {}\nschedule = \"{}\"\n",
                      g.sequence_parallel, g.gather_again, g.pp, g.schedule);
  if (g.stages() > 1) {
    text += fmt::format("chunks = {}\nlayers_per_stage = [{}]\n", g.chunks,
                        fmt::join(Estimator(job).cut(g.stages()), ", "));
  }
  if (g.cp > 1) text += context_keys(g.cp_style);
  return text + fmt::format("cp = {}\nep = {}\netp = {}\n", g.cp, g.ep, g.etp);
}

}  // namespace quatrain::apps
