// SPDX-License-Identifier: Apache-2.0
// The keys of a run's TOML: one table for parsing, unknown and misplaced keys, ranges, writing and
// help. Private to spec/.
#pragma once
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quatrain/spec/run_config.h"

namespace quatrain {

// What a file says before it is resolved: a configuration and where its model comes from.
struct RunDraft {
  RunConfig config;
  std::string model_name;  // [model] name, a catalogue entry
  std::string model_hf;    // [model] hf, a folder
};

using Field = std::variant<std::string*, bool*, int*, std::int64_t*, std::uint64_t*, double*,
                           Dtype*, Recompute*, std::vector<std::string>*,
                           std::vector<std::int64_t>*, std::vector<DataPath>*>;

inline constexpr double kInf = std::numeric_limits<double>::infinity();
// Allowed numbers; `open`: the lower bound itself is not allowed.
struct Bounds {
  double least = -kInf;
  double most = kInf;
  bool least_open = false;
  bool most_open = false;
};

struct Key {
  std::string_view section;
  std::string_view name;
  std::string_view unit;
  std::string_view help;
  Field (*field)(RunDraft&);
  std::optional<Bounds> range{};            // numbers
  std::vector<std::string_view> choices{};  // strings; "file:PATH" stands for all of that kind
  std::string_view also{};  // what other trainers call it, separated by spaces: for suggestions
  bool input_only = false;  // replaced by what it stands for in a resolved file
};

// Address of config.<section>.<member>.
template <auto Section, auto Member>
Field field(RunDraft& draft) {
  return &(draft.config.*Section.*Member);
}
inline const Bounds kCount{.least = 0};
inline const Bounds kPositive{.least = 1};

// Rows of the table from [parallel] on: run_keys_job.cc.
void add_job_keys(std::vector<Key>& keys);
const std::vector<Key>& run_keys();
const std::vector<std::string_view>& run_sections();  // in the order of files and help
const Key* find_run_key(std::string_view section, std::string_view name);

// "integer", "list of strings", ...
std::string_view type_name(const Field& field);
// Sets the field; an empty string, or what is wrong ("expected an integer, got a string").
std::string assign(const Field& field, const nlohmann::json& value);
// The field's value for to_toml_value.
nlohmann::json value_of(const Field& field);

// Broken ranges and choices of the table, places as "section.key".
Problems check_table(const RunConfig& config);

// "0 < lr <= 10", "one of a, b": empty when anything goes.
std::string allowed(const Key& key);

// The ranks of data parallelism; dp_shard must be resolved.
inline std::int64_t data_ranks(const RunConfig::Parallel& parallel) {
  return std::int64_t{parallel.dp_replicate} * parallel.dp_shard;
}
inline std::int64_t model_ranks(const RunConfig::Parallel& parallel) {
  return std::int64_t{parallel.tp} * parallel.pp * parallel.cp;
}

// Derives what the file leaves open (run.folder, dp_shard = -1, the third batch number) for `world`
// ranks (0: what the degrees multiply to); places as "section.key".
Problems resolve_numbers(RunConfig& config, int world);

}  // namespace quatrain
