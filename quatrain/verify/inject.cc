// SPDX-License-Identifier: Apache-2.0
// The table of faults: a row each, and the text that chooses one.
#include "quatrain/verify/inject.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/spec/parameters.h"
#include "quatrain/verify/context_fault.h"
#include "quatrain/verify/expert_fault.h"
#include "quatrain/verify/planted_fault.h"
#include "quatrain/verify/stage_fault.h"

namespace quatrain {
namespace {

enum class Subject : std::uint8_t { kNone, kParameter, kUnit, kGroup, kAxis, kStage, kNumber };

enum class Second : std::uint8_t { kNone, kNumber, kAxis, kMicrobatch };

struct Row {
  FaultKind kind;
  Subject subject;  // what stands before the colon
  Second second;    // and behind it
  std::unique_ptr<RankHooks> (*make)(const FaultArguments&);
};

template <class Hooks>
std::unique_ptr<RankHooks> make(const FaultArguments& arguments) {
  return std::make_unique<Hooks>(arguments);
}

std::vector<Row> rows_of_ranks() {
  return {
      {{"scale", "NAME:FACTOR", "the parameter's gradient is multiplied"},
       Subject::kParameter,
       Second::kNumber,
       make<ScaledGradient>},
      {{"drop_reduce", "NAME", "its gradient is not summed over ranks"},
       Subject::kParameter,
       Second::kNone,
       make<DroppedSum>},
      {{"double_reduce", "NAME", "its gradient is summed twice over ranks"},
       Subject::kParameter,
       Second::kNone,
       make<DoubledSum>},
      {{"swap_shards", "NAME", "two ranks hold each other's part of its gradient"},
       Subject::kParameter,
       Second::kNone,
       make<SwappedShards>},
      {{"repeat", "NAME:AXIS", "in the forward it counts once a rank of the axis"},
       Subject::kParameter,
       Second::kAxis,
       make<RepeatedValue>},
      {{"stale_gather", "UNIT", "a ZeRO unit is gathered in step 1 and never again"},
       Subject::kUnit,
       Second::kNone,
       make<StaleGather>},
      {{"missing_gather", "GROUP:N",
        "each step's Nth all_gather of a group (dp, tp) brings nothing"},
       Subject::kGroup,
       Second::kNumber,
       make<MissingGather>},
      {{"norm_not_summed", "", "each rank takes the norm of what it holds alone"},
       Subject::kNone,
       Second::kNone,
       make<OwnNorm>},
      {{"loss_divisor", "rank", "each rank divides by its own tokens"},
       Subject::kNone,
       Second::kNone,
       make<OwnDivisor>},
      {{"shift_positions", "AXIS", "rank 1 of the axis puts later halves of sequences one ahead"},
       Subject::kAxis,
       Second::kNone,
       make<ShiftedPositions>},
      {{"dropout_seed", "AXIS", "dropout depends on the rank along the axis"},
       Subject::kAxis,
       Second::kNone,
       make<SeedByRank>},
  };
}

std::vector<Row> rows_of_experts() {
  return {
      {{"balance", "FACTOR", "the load-balance loss is multiplied"},
       Subject::kNumber,
       Second::kNone,
       make<ScaledBalance>},
      {{"mean_experts", "", "gradients of experts are means over all data ranks"},
       Subject::kNone,
       Second::kNone,
       make<MeanExperts>},
      {{"local_router", "", "routers get the gradient of choices that stay on their rank alone"},
       Subject::kNone,
       Second::kNone,
       make<LocalRouter>},
      {{"weight_order", "", "weights of choices reach the experts in reverse order"},
       Subject::kNone,
       Second::kNone,
       make<WeightOrder>},
  };
}

std::vector<Row> rows_of_context() {
  return {
      {{"local_positions", "", "positions count from the first token of a rank of cp"},
       Subject::kNone,
       Second::kNone,
       make<LocalPositions>},
      {{"local_mask", "", "queries see keys by their indices on their ranks of cp"},
       Subject::kNone,
       Second::kNone,
       make<LocalMask>},
      {{"own_lse", "", "on the ring the backward takes the log-sum-exp of own keys alone"},
       Subject::kNone,
       Second::kNone,
       make<OwnLse>},
      {{"stale_block", "", "on the ring a block's dK and dV go home as those sent before"},
       Subject::kNone,
       Second::kNone,
       make<StaleBlock>},
  };
}

std::vector<Row> rows_of_stages() {
  return {
      {{"missing_weight", "STAGE:M", "a stage adds no weight gradient of a micro-batch"},
       Subject::kStage,
       Second::kMicrobatch,
       make<MissingWeight>},
      {{"wrong_weight", "STAGE:M", "in place of one micro-batch's it adds another's once more"},
       Subject::kStage,
       Second::kMicrobatch,
       make<WrongWeight>},
      {{"stale_tied", "", "the last stage's copy of a tied table misses the first one's gradient"},
       Subject::kNone,
       Second::kNone,
       make<StaleTied>},
      {{"loss_twice", "", "the loss is divided by the number of micro-batches as well"},
       Subject::kNone,
       Second::kNone,
       make<LossTwice>},
  };
}

const std::vector<Row>& table() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all = rows_of_ranks();
    for (const Row& row : rows_of_stages()) all.push_back(row);
    for (const Row& row : rows_of_experts()) all.push_back(row);
    for (const Row& row : rows_of_context()) all.push_back(row);
    return all;
  }();
  return rows;
}

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  std::vector<std::string> forms;
  for (const Row& row : table()) {
    forms.push_back(std::string(row.kind.name) + (row.kind.argument.empty() ? "" : "=") +
                    std::string(row.kind.argument));
  }
  throw ConfigError(fmt::format("--inject {}: {}; there are: {}", text, why, join(forms, ", ")));
}

std::vector<std::string> parameter_names(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (const ParameterInfo& info : parameters(spec)) names.push_back(info.name);
  return names;
}

std::vector<std::string> axis_names() {
  const Mesh mesh;
  std::vector<std::string> names;
  for (const Axis axis : mesh.order()) names.emplace_back(name(axis));
  return names;
}

void expect_one_of(std::string_view text, std::string_view value,
                   const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), value) != names.end()) return;
  refuse(text, fmt::format("there is no \"{}\"; did you mean {}?", value,
                           join(nearest(value, names, 2), " or ")));
}

double number_of(std::string_view text, std::string_view value) {
  double number = 0.0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end) refuse(text, fmt::format("\"{}\" is no number", value));
  return number;
}

int index_of(std::string_view text, std::string_view value) {
  int index = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, index);
  if (error != std::errc() || stop != end || index < 0) {
    refuse(text, fmt::format("\"{}\" is no number from 0", value));
  }
  return index;
}

FaultArguments arguments_of(std::string_view text, std::string_view value, const Row& row,
                            const ModelSpec& spec) {
  FaultArguments arguments;
  if (row.subject == Subject::kNone) {
    if (value != row.kind.argument) refuse(text, fmt::format("\"{}\" says nothing", value));
    return arguments;
  }
  if (value.empty()) refuse(text, fmt::format("{} needs {}", row.kind.name, row.kind.argument));
  if (row.second != Second::kNone) {
    const std::size_t colon = value.rfind(':');
    if (colon == std::string_view::npos) refuse(text, fmt::format("give {}", row.kind.argument));
    const std::string_view second = value.substr(colon + 1);
    if (row.second == Second::kNumber) arguments.number = number_of(text, second);
    if (row.second == Second::kMicrobatch) arguments.microbatch = index_of(text, second);
    if (row.second == Second::kAxis) {
      expect_one_of(text, second, axis_names());
      arguments.axis = second;
    }
    value = value.substr(0, colon);
  }
  arguments.name = value;
  if (row.subject == Subject::kNumber) arguments.number = number_of(text, value);
  if (row.subject == Subject::kStage) arguments.stage = index_of(text, value);
  if (row.subject == Subject::kParameter) expect_one_of(text, value, parameter_names(spec));
  if (row.subject == Subject::kAxis) {
    expect_one_of(text, value, axis_names());
    arguments.axis = value;
  }
  return arguments;
}

}  // namespace

std::vector<FaultKind> fault_kinds() {
  std::vector<FaultKind> kinds;
  for (const Row& row : table()) kinds.push_back(row.kind);
  return kinds;
}

Injection parse_injection(std::string_view text, const ModelSpec& spec) {
  const std::size_t equals = std::min(text.find('='), text.size());
  const auto row = std::find_if(table().begin(), table().end(), [&](const Row& r) {
    return r.kind.name == text.substr(0, equals);
  });
  if (row == table().end()) refuse(text, "no such fault");
  const std::string_view value = text.substr(std::min(equals + 1, text.size()));
  FaultArguments arguments = arguments_of(text, value, *row, spec);
  arguments.met = std::make_shared<std::atomic<bool>>(false);
  const auto hooks = [make = row->make, arguments](const Mesh& mesh) {
    FaultArguments own = arguments;
    own.mesh = mesh;
    return make(own);
  };
  return {hooks, arguments.met};
}

}  // namespace quatrain
