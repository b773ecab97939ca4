// SPDX-License-Identifier: Apache-2.0
// Plan as canonical JSON: sorted keys, no spaces, every field present, so that equal plans have
// equal text and hash on every machine.
#include "quatrain/spec/plan.h"

#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>

#include "quatrain/base/rng.h"
#include "quatrain/base/text.h"

namespace quatrain {
namespace {

using Json = nlohmann::json;

constexpr std::array kRecomputes{Recompute::kNone, Recompute::kSelective, Recompute::kFull};

Axis axis_from_name(const std::string& text) {
  for (int i = 0; i < kNumAxes; ++i) {
    if (name(static_cast<Axis>(i)) == text) return static_cast<Axis>(i);
  }
  throw ConfigError(fmt::format("plan: axis_order: no axis is called \"{}\"", text));
}

Dtype required_dtype(const std::string& text) {
  if (const auto dtype = dtype_from_name(text)) return *dtype;
  throw ConfigError(
      fmt::format("plan: dtype: \"{}\" is not one of float32, bfloat16, float64", text));
}

Recompute required_recompute(const std::string& text) {
  if (const auto recompute = recompute_from_name(text)) return *recompute;
  throw ConfigError(
      fmt::format("plan: recompute: \"{}\" is not one of none, selective, full", text));
}

// Takes keys one by one; what is left over at the end is unknown.
class KeyReader {
 public:
  explicit KeyReader(Json object, std::string where)
      : object_(std::move(object)), where_(std::move(where)) {
    if (!object_.is_object()) throw ConfigError(where_ + ": expected a JSON object");
  }
  template <class T>
  void take(const std::string& key, T& field) {
    seen_.push_back(key);
    const auto found = object_.find(key);
    if (found == object_.end()) throw ConfigError(fmt::format("{}: {} is missing", where_, key));
    try {
      field = found->get<T>();
    } catch (const Json::exception&) {
      wrong_type(key, *found);
    }
    if (Json(field) != *found) wrong_type(key, *found);  // no silent 1.5 -> 1, true -> 1
    object_.erase(found);
  }
  void finish() const {
    if (object_.empty()) return;
    const std::string key = object_.begin().key();
    const auto near = nearest(key, seen_, 1);
    throw ConfigError(fmt::format("{}: unknown key {}{}", where_, key,
                                  near.empty() ? "" : "; did you mean " + near[0] + "?"));
  }

 private:
  [[noreturn]] void wrong_type(const std::string& key, const Json& value) const {
    throw ConfigError(
        fmt::format("{}: {} = {} has the wrong type or range", where_, key, value.dump()));
  }
  Json object_;
  std::string where_;
  std::vector<std::string> seen_;
};

}  // namespace

std::string_view name(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  return "";
}

std::optional<Recompute> recompute_from_name(std::string_view text) {
  for (Recompute recompute : kRecomputes) {
    if (name(recompute) == text) return recompute;
  }
  return std::nullopt;
}

std::vector<std::int64_t> even_layers(std::int64_t layers, int stages) {
  std::vector<std::int64_t> result;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    result.push_back(layers / stages + (stage < layers % stages ? 1 : 0));
  }
  return result;
}

std::vector<int> first_layers(const std::vector<std::int64_t>& layers_per_stage) {
  std::vector<int> result;
  std::int64_t begin = 0;
  for (std::int64_t layers : layers_per_stage) {
    result.push_back(static_cast<int>(begin));
    begin += layers;
  }
  return result;
}

std::string to_json(const Plan& plan) {
  Json degrees = Json::object();
  for (int i = 0; i < kNumAxes; ++i) {
    degrees[std::string(name(static_cast<Axis>(i)))] = plan.degrees[static_cast<std::size_t>(i)];
  }
  Json order = Json::array();
  for (Axis axis : plan.axis_order) order.push_back(std::string(name(axis)));
  Json json{{"degrees", degrees},
            {"axis_order", order},
            {"seq_len", plan.seq_len},
            {"microbatch_size", plan.microbatch_size},
            {"num_microbatches", plan.num_microbatches},
            {"stage_begin", plan.stage_begin},
            {"schedule", plan.schedule},
            {"chunks", plan.chunks},
            {"zero_stage", plan.zero_stage},
            {"prefetch", plan.prefetch},
            {"reduce_once", plan.reduce_once},
            {"gather_once", plan.gather_once},
            {"sequence_parallel", plan.sequence_parallel},
            {"gather_again", plan.gather_again},
            {"overlap_chunks", plan.overlap_chunks},
            {"cp_style", plan.cp_style},
            {"recompute", std::string(name(plan.recompute))},
            {"dtype", std::string(name(plan.dtype))}};
  // Named where they say something: other plans keep their text and hash.
  if (plan.cp_heads != 1) json["cp_heads"] = plan.cp_heads;
  if (!plan.cp_zigzag) json["cp_zigzag"] = false;
  if (plan.ep_chunks != 1) json["ep_chunks"] = plan.ep_chunks;
  return json.dump();
}

Plan plan_from_json(std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) throw ConfigError("plan: not valid JSON");
  const bool heads = json.contains("cp_heads"), zigzag = json.contains("cp_zigzag");
  const bool chunks = json.contains("ep_chunks");
  KeyReader keys(std::move(json), "plan");
  Plan plan;
  if (heads) keys.take("cp_heads", plan.cp_heads);
  if (zigzag) keys.take("cp_zigzag", plan.cp_zigzag);
  if (chunks) keys.take("ep_chunks", plan.ep_chunks);
  Json degrees;
  std::vector<std::string> order;
  std::string recompute;
  std::string dtype;
  keys.take("degrees", degrees);
  keys.take("axis_order", order);
  keys.take("seq_len", plan.seq_len);
  keys.take("microbatch_size", plan.microbatch_size);
  keys.take("num_microbatches", plan.num_microbatches);
  keys.take("stage_begin", plan.stage_begin);
  keys.take("schedule", plan.schedule);
  keys.take("chunks", plan.chunks);
  keys.take("zero_stage", plan.zero_stage);
  keys.take("prefetch", plan.prefetch);
  keys.take("reduce_once", plan.reduce_once);
  keys.take("gather_once", plan.gather_once);
  keys.take("sequence_parallel", plan.sequence_parallel);
  keys.take("gather_again", plan.gather_again);
  keys.take("overlap_chunks", plan.overlap_chunks);
  keys.take("cp_style", plan.cp_style);
  keys.take("recompute", recompute);
  keys.take("dtype", dtype);
  keys.finish();
  KeyReader degree_keys(std::move(degrees), "plan: degrees");
  for (int i = 0; i < kNumAxes; ++i) {
    degree_keys.take(std::string(name(static_cast<Axis>(i))),
                     plan.degrees[static_cast<std::size_t>(i)]);
  }
  degree_keys.finish();
  plan.axis_order.clear();
  for (const std::string& axis : order) plan.axis_order.push_back(axis_from_name(axis));
  plan.recompute = required_recompute(recompute);
  plan.dtype = required_dtype(dtype);
  return plan;
}

std::string hash(const Plan& plan) { return fmt::format("{:016x}", stable_hash(to_json(plan))); }

}  // namespace quatrain
