// SPDX-License-Identifier: Apache-2.0
// rope_theta and rope_scaling: linear (Chen et al., arXiv:2306.15595), llama3 (Grattafiori et al.,
// arXiv:2407.21783, section 3.4.1) and YaRN (Peng et al., arXiv:2309.00071).
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "quatrain/base/text.h"
#include "quatrain/spec/model_keys.h"
#include "quatrain/spec/toml_document.h"

namespace quatrain {
namespace {

using Json = nlohmann::json;

struct TypeName {
  std::string_view name;
  RopeScaling scaling;
};
constexpr std::array kTypes{
    TypeName{"default", RopeScaling::kNone}, TypeName{"linear", RopeScaling::kLinear},
    TypeName{"llama3", RopeScaling::kLlama3}, TypeName{"yarn", RopeScaling::kYarn}};

std::string_view type_name(RopeScaling scaling) {
  for (const TypeName& type : kTypes) {
    if (type.scaling == scaling) return type.name;
  }
  return "";
}

class ScalingReader {
 public:
  ScalingReader(const Json& table, std::string where, Problems& problems)
      : table_(table), where_(std::move(where)), problems_(problems) {}

  double number(const char* key, double fallback) {
    return find(key) ? table_.at(key).get<double>() : fallback;
  }
  double required(const char* key) {
    if (!table_.contains(key)) problem(fmt::format("rope_scaling.{} is missing", key), "");
    return number(key, 1.0);
  }
  bool find(const char* key) {
    used_.emplace_back(key);
    const auto found = table_.find(key);
    if (found == table_.end() || found->is_null()) return false;
    if (found->is_number()) return true;
    problem(fmt::format("rope_scaling.{} = {} is not a number", key, to_toml_value(*found)), "");
    return false;
  }
  void problem(std::string what, std::string hint) {
    problems_.push_back({where_, std::move(what), std::move(hint)});
  }
  void refuse_the_rest() {
    for (const auto& [key, value] : table_.items()) {
      const bool known = key == "rope_type" || key == "type" ||
                         std::find(used_.begin(), used_.end(), key) != used_.end() ||
                         (key == "truncate" && value == Json(true));
      if (known) continue;
      const auto near = nearest(key, used_, 1);
      problem(fmt::format("rope_scaling.{} is not known for this rope_type", key),
              near.empty() ? "known: " + join(used_, " ") : "did you mean " + near[0] + "?");
    }
  }

 private:
  const Json& table_;
  std::string where_;
  Problems& problems_;
  std::vector<std::string> used_;
};

// The scaling's name; "default" where there is none to read.
std::string read_type(const Json& table, ScalingReader& in) {
  const Json type = table.value("rope_type", table.value("type", Json("default")));
  if (table.contains("type") && table.contains("rope_type") && table["type"] != type) {
    in.problem("rope_scaling.type disagrees with rope_scaling.rope_type", "keep rope_type");
  }
  if (type.is_string()) return type.get<std::string>();
  in.problem("rope_scaling.rope_type is not a string", "linear, llama3 or yarn");
  return "default";
}

void read_scaling(ScalingReader& in, Rope& rope, std::int64_t max_positions) {
  switch (rope.scaling) {
    case RopeScaling::kNone:
      return;
    case RopeScaling::kLinear:
      rope.factor = in.required("factor");
      return;
    case RopeScaling::kLlama3:
      rope.factor = in.required("factor");
      rope.low_freq_factor = in.required("low_freq_factor");
      rope.high_freq_factor = in.required("high_freq_factor");
      rope.original_max_positions =
          static_cast<std::int64_t>(in.required("original_max_position_embeddings"));
      return;
    case RopeScaling::kYarn:
      rope.factor = in.required("factor");
      rope.original_max_positions = static_cast<std::int64_t>(
          in.number("original_max_position_embeddings", static_cast<double>(max_positions)));
      rope.beta_fast = in.number("beta_fast", 32.0);
      rope.beta_slow = in.number("beta_slow", 1.0);
      if (in.find("attention_factor")) rope.attention_factor = in.number("attention_factor", 1.0);
      rope.mscale = in.number("mscale", 0.0);
      rope.mscale_all_dim = in.number("mscale_all_dim", 0.0);
      return;
  }
}

}  // namespace

Rope rope_from_keys(const Json& keys, double default_theta, std::int64_t max_positions,
                    const Locate& where, Problems& problems) {
  Rope rope;
  const auto theta = keys.find("rope_theta");
  rope.theta = theta != keys.end() && theta->is_number() ? theta->get<double>() : default_theta;
  const auto table = keys.find("rope_scaling");
  if (table == keys.end() || !table->is_object() || table->contains("wrong type")) return rope;
  ScalingReader in(*table, where("rope_scaling"), problems);
  const std::string type = read_type(*table, in);
  for (const TypeName& known : kTypes) {
    if (known.name != type) continue;
    rope.scaling = known.scaling;
    read_scaling(in, rope, max_positions);
    in.refuse_the_rest();
    return rope;
  }
  in.problem(fmt::format("rope_type \"{}\" is not supported", type), "linear, llama3 and yarn are");
  return rope;
}

void rope_to_keys(const ModelSpec& spec, Json& keys) {
  const Rope& rope = spec.rope;
  keys["rope_theta"] = rope.theta;
  if (rope.scaling == RopeScaling::kNone) return;
  Json table{{"rope_type", std::string(type_name(rope.scaling))}, {"factor", rope.factor}};
  if (rope.scaling == RopeScaling::kLlama3) {
    table["low_freq_factor"] = rope.low_freq_factor;
    table["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.scaling != RopeScaling::kLinear) {
    table["original_max_position_embeddings"] = rope.original_max_positions;
  }
  if (rope.scaling == RopeScaling::kYarn) {
    table["beta_fast"] = rope.beta_fast;
    table["beta_slow"] = rope.beta_slow;
    if (rope.attention_factor) table["attention_factor"] = *rope.attention_factor;
    if (rope.mscale != 0.0) table["mscale"] = rope.mscale;
    if (rope.mscale_all_dim != 0.0) table["mscale_all_dim"] = rope.mscale_all_dim;
  }
  keys["rope_scaling"] = table;
}

}  // namespace quatrain
