// SPDX-License-Identifier: Apache-2.0
// One table says what a file holds; reading, writing and complaining follow it.
#include "quatrain/planner/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/toml_document.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

enum class Allowed : std::uint8_t { kPositive, kNotNegative, kOneOrMore, kShare, kPart, kFraction };
struct NumberKey {
  const char* name;
  double ClusterSpec::*member;
  Allowed range;
  bool optional = false;
};
using enum Allowed;
constexpr NumberKey kNumbers[] = {
    {"peak_bf16", &ClusterSpec::peak_bf16, kPositive},
    {"peak_fp8", &ClusterSpec::peak_fp8, kNotNegative},
    {"peak_fp32", &ClusterSpec::peak_fp32, kPositive},
    {"memory_bytes", &ClusterSpec::memory_bytes, kPositive},
    {"memory_bandwidth", &ClusterSpec::memory_bandwidth, kPositive},
    {"memory_efficiency", &ClusterSpec::memory_efficiency, kShare},
    {"gemm_efficiency", &ClusterSpec::gemm_efficiency, kShare},
    {"gemm_efficiency_fp8", &ClusterSpec::gemm_efficiency_fp8, kNotNegative},
    {"sustained", &ClusterSpec::sustained, kShare, true},
    {"attention_efficiency", &ClusterSpec::attention_efficiency, kShare},
    {"compute_units", &ClusterSpec::compute_units, kOneOrMore},
    {"tile", &ClusterSpec::tile, kOneOrMore, true},
    {"inner_ramp", &ClusterSpec::inner_ramp, kNotNegative, true},
    {"grouped_efficiency", &ClusterSpec::grouped_efficiency, kShare, true},
    {"theft", &ClusterSpec::theft, kNotNegative, true},
    {"launch_seconds", &ClusterSpec::launch_seconds, kNotNegative},
    {"jitter", &ClusterSpec::jitter, kNotNegative, true},
    {"solo_gain", &ClusterSpec::solo_gain, kPart, true},
    {"torus_axes", &ClusterSpec::torus_axes, kOneOrMore, true},
    {"domain", &ClusterSpec::domain, kOneOrMore},
    {"domain_bandwidth", &ClusterSpec::domain_bandwidth, kPositive},
    {"domain_efficiency", &ClusterSpec::domain_efficiency, kShare},
    {"all_reduce_gain", &ClusterSpec::all_reduce_gain, kOneOrMore, true},
    {"domain_latency", &ClusterSpec::domain_latency, kNotNegative},
    {"network_bandwidth", &ClusterSpec::network_bandwidth, kPositive},
    {"network_efficiency", &ClusterSpec::network_efficiency, kShare},
    {"network_latency", &ClusterSpec::network_latency, kNotNegative},
    {"network_decay", &ClusterSpec::network_decay, kNotNegative},
    {"overhead_bytes", &ClusterSpec::overhead_bytes, kNotNegative},
    {"fragmentation", &ClusterSpec::fragmentation, kNotNegative},
    {"failure_hours", &ClusterSpec::failure_hours, kNotNegative, true},
    {"stash_factor", &ClusterSpec::stash_factor, kPositive, true},
    {"whole_logits", &ClusterSpec::whole_logits, kNotNegative, true},
    {"score_bytes", &ClusterSpec::score_bytes, kNotNegative, true},
    {"pass_factor", &ClusterSpec::pass_factor, kPositive, true},
    {"whole_again", &ClusterSpec::whole_again, kFraction, true},
    {"remade", &ClusterSpec::remade, kFraction, true},
    {"tensor_overlap", &ClusterSpec::tensor_overlap, kPart, true},
    {"host_seconds", &ClusterSpec::host_seconds, kNotNegative, true},
};
constexpr std::pair<const char*, Topology> kTopologies[] = {
    {"switch", Topology::kSwitch}, {"mesh", Topology::kMesh}, {"torus", Topology::kTorus}};

bool in_range(double value, Allowed range) {
  switch (range) {
    case kPositive:
      return value > 0;
    case kNotNegative:
      return value >= 0;
    case kOneOrMore:
      return value >= 1;
    case kShare:
      return value > 0 && value <= 1;
    case kPart:
      return value >= 0 && value < 1;
    case kFraction:
      return value >= 0 && value <= 1;
  }
  return false;
}
const char* in_words(Allowed range) {
  switch (range) {
    case kPositive:
      return "a number above 0";
    case kNotNegative:
      return "a number, 0 or more";
    case kOneOrMore:
      return "a number, 1 or more";
    case kShare:
      return "a share, above 0 and at most 1";
    case kPart:
      return "a share, 0 or more and below 1";
    case kFraction:
      return "a share, from 0 to 1";
  }
  return "";
}

class Reader {
 public:
  Reader(const TomlDocument& document, std::string_view where)
      : document_(document), where_(where) {}

  ClusterSpec run() && {
    for (const NumberKey& key : kNumbers) read(key);
    read_topology();
    refuse_unknown();
    throw_if_any(problems_);
    spec_.name = fs::path(where_).stem().string();
    return std::move(spec_);
  }

 private:
  std::string place(const std::string& key) const {
    const auto line = document_.lines.find(key);
    return line == document_.lines.end() ? fmt::format("{}: {}", where_, key)
                                         : fmt::format("{}:{}: {}", where_, line->second, key);
  }
  void read(const NumberKey& key) {
    const auto value = document_.root.find(key.name);
    if (value == document_.root.end()) {
      if (!key.optional) problems_.push_back({place(key.name), "is missing", in_words(key.range)});
      return;
    }
    const double number = value->is_number() ? value->get<double>() : -1.0;
    if (std::isfinite(number) && in_range(number, key.range)) {
      spec_.*key.member = number;
    } else {
      problems_.push_back({place(key.name), "is out of range", in_words(key.range)});
    }
  }
  void read_topology() {
    const auto value = document_.root.find("topology");
    for (const auto& [name, topology] : kTopologies) {
      if (value == document_.root.end() || *value != name) continue;
      spec_.topology = topology;
      return;
    }
    problems_.push_back({place("topology"), "is not known", "switch, mesh or torus"});
  }
  void refuse_unknown() {
    std::vector<std::string> names{"topology"};
    for (const NumberKey& key : kNumbers) names.emplace_back(key.name);
    for (const auto& [key, value] : document_.root.items()) {
      if (std::find(names.begin(), names.end(), key) != names.end()) continue;
      const std::vector<std::string> near = nearest(key, names, 1);
      problems_.push_back(
          {place(key), "unknown key",
           near.empty() ? "keys: " + join(names, " ") : "did you mean " + near.front() + "?"});
    }
  }

  const TomlDocument& document_;
  std::string_view where_;
  ClusterSpec spec_;
  Problems problems_;
};

}  // namespace

std::vector<std::string> catalog_clusters() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(catalog_folder() / "clusters", ignored)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

ClusterSpec cluster_from_toml(std::string_view text, std::string_view where) {
  const TomlDocument document = parse_toml(text, where);
  throw_if_any(document.problems);
  return Reader(document, where).run();
}

ClusterSpec cluster(std::string_view name_or_path) {
  const std::vector<std::string> names = catalog_clusters();
  fs::path path(name_or_path);
  std::error_code ignored;
  if (std::find(names.begin(), names.end(), name_or_path) != names.end()) {
    path = catalog_folder() / "clusters" / (std::string(name_or_path) + ".toml");
  } else if (!fs::is_regular_file(path, ignored)) {
    const std::vector<std::string> near = nearest(name_or_path, names);
    throw ConfigError(fmt::format(
        "the catalogue has no cluster \"{}\" and there is no such file; {}", name_or_path,
        near.empty() ? "entries: " + join(names, " ") : "did you mean " + join(near, ", ") + "?"));
  }
  return cluster_from_toml(read_file(path), path.string());
}

std::string to_toml(const ClusterSpec& cluster) {
  std::string text;
  for (const NumberKey& key : kNumbers) {
    text += fmt::format("{} = {}\n", key.name, to_toml_value(cluster.*key.member));
  }
  for (const auto& [name, topology] : kTopologies) {
    if (topology == cluster.topology) text += fmt::format("topology = \"{}\"\n", name);
  }
  return text;
}

}  // namespace quatrain
