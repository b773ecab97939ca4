// SPDX-License-Identifier: Apache-2.0
#include "quatrain/spec/context_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "quatrain/base/text.h"
#include "quatrain/mesh/cut.h"

namespace quatrain {
namespace {

// Of queries [0, end) and keys [0, keys).
std::int64_t pairs_below(std::int64_t queries, std::int64_t keys, std::int64_t window) {
  const std::int64_t seen = std::max<std::int64_t>(0, std::min(queries, keys));
  const std::int64_t full =
      window > 0 ? std::clamp<std::int64_t>(queries - window, 0, seen) : std::int64_t{0};
  return full * window + (seen - full) * (2 * queries - seen - full + 1) / 2;
}

// Degrees that share `heads` query heads and their groups of keys and values evenly.
std::vector<std::string> fitting(std::int64_t heads, std::int64_t kv_heads) {
  std::vector<std::string> fit;
  for (std::int64_t n = 1; n <= heads; ++n) {
    if (heads % n == 0 && (kv_heads % n == 0 || n % kv_heads == 0)) {
      fit.push_back(std::to_string(n));
    }
  }
  return fit;
}

}  // namespace

std::int64_t total(const std::vector<Range>& ranges) {
  std::int64_t size = 0;
  for (const Range& range : ranges) size += range.size();
  return size;
}

std::vector<Range> ContextSplit::of_place(std::int64_t seq, int place) const {
  const Shard shard{.layout = zigzag ? Layout::kZigzag : Layout::kBlock};
  return cut_ranges({{0, seq}}, shard, places(), place);
}

std::vector<Range> ContextSplit::of_rank(std::int64_t seq, int of) const {
  return cut_ranges(of_place(seq, of / heads), Shard{}, heads, of % heads);
}

bool ContextSplit::even(std::int64_t seq) const {
  return seq % degree == 0 && (!zigzag || seq % (2 * places()) == 0);
}

std::int64_t ContextSplit::tokens(std::int64_t seq) const { return total(own(seq)); }

ContextSplit context_split(const Plan& plan, int world_rank) {
  const Mesh mesh(plan.degrees, plan.axis_order, world_rank);
  ContextSplit split = context_split(plan.cp_style, mesh.degree(Axis::kCp), plan.cp_heads);
  split.rank = mesh.coord(Axis::kCp);
  split.zigzag = plan.cp_zigzag;
  return split;
}

ContextSplit context_split(std::string_view style, int degree, int cp_heads) {
  ContextSplit split;
  split.degree = degree;
  if (style == "ulysses") split.heads = degree;
  if (style == "hybrid") split.heads = cp_heads;
  split.gathers = style == "all_gather";
  return split;
}

Problems check_context(const ModelSpec& model, int tp, const ContextSplit& split,
                       std::int64_t seq) {
  Problems problems;
  if (split.degree == 1) return problems;
  if (seq < split.degree) {
    problems.push_back({"parallel.cp",
                        fmt::format("cp = {} is more than seq_len = {}", split.degree, seq),
                        fmt::format("cp = {} or fewer", seq)});
  }
  if (split.heads < 1 || split.degree % split.heads != 0) {
    problems.push_back(
        {"parallel.cp_heads",
         fmt::format("cp_heads = {} does not divide cp = {}", split.heads, split.degree),
         "a divisor of cp"});
    return problems;
  }
  const std::int64_t heads = model.heads / std::max(1, tp);
  const std::int64_t kv =
      model.latent ? heads : std::max<std::int64_t>(1, model.kv_heads / std::max(1, tp));
  if (heads % split.heads != 0 || (kv % split.heads != 0 && split.heads % kv != 0)) {
    problems.push_back(
        {"parallel.cp_style",
         fmt::format("{} ranks cannot share {} attention heads with {} of keys and values evenly",
                     split.heads, heads, kv),
         fmt::format("degrees that fit: {}; or cp_style = \"ring\"",
                     join(fitting(heads, kv), " "))});
  }
  return problems;
}

std::int64_t causal_pairs(Range queries, Range keys, std::int64_t window) {
  return pairs_below(queries.end, keys.end, window) - pairs_below(queries.begin, keys.end, window) -
         pairs_below(queries.end, keys.begin, window) +
         pairs_below(queries.begin, keys.begin, window);
}

}  // namespace quatrain
