// SPDX-License-Identifier: Apache-2.0
// Which tokens of a sequence a rank of context parallelism holds, and how attention sees the rest.
//
//   ring        keys and values travel from rank to rank (Liu et al., arXiv:2310.01889)
//   all_gather  every rank gathers those of a layer (Llama 3, arXiv:2407.21783, section 3.3.2)
//   ulysses     ranks exchange tokens for heads (DeepSpeed-Ulysses, arXiv:2309.14509)
//   hybrid      neighbours exchange heads, groups of them form a ring (USP, arXiv:2405.07719)
//
// Causal masks give late tokens more work: in zigzag order place p of n holds chunks p and
// 2n - 1 - p of 2n, as much work as any other. Chunks may be uneven: every length can be cut.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/mesh/placement.h"
#include "quatrain/spec/plan.h"

namespace quatrain {

inline constexpr std::string_view kCpStyles[] = {"ring", "all_gather", "ulysses", "hybrid"};

// A rank's place. `heads` neighbours share a run of tokens between them, and exchange them for
// heads; groups of them lie on the ring.
struct ContextSplit {
  int degree = 1;
  int rank = 0;
  int heads = 1;
  bool gathers = false;  // keys and values come at once, not around the ring
  bool zigzag = true;

  int places() const { return degree / heads; }  // of the ring
  int place() const { return rank / heads; }
  // Ranges of [0, seq) in local order: of a whole place, and of a rank.
  std::vector<Range> of_place(std::int64_t seq, int place) const;
  std::vector<Range> of_rank(std::int64_t seq, int of) const;
  std::vector<Range> own(std::int64_t seq) const { return of_rank(seq, rank); }
  std::int64_t tokens(std::int64_t seq) const;  // of own()
  // Whether all ranks have as many tokens; in zigzag order then as many pairs, too.
  bool even(std::int64_t seq) const;
  friend bool operator==(const ContextSplit&, const ContextSplit&) = default;
};
std::int64_t total(const std::vector<Range>& ranges);

ContextSplit context_split(const Plan& plan, int world_rank);
// Of rank 0, in zigzag order. `cp_heads` is read for "hybrid" alone.
ContextSplit context_split(std::string_view style, int degree, int cp_heads);

// What keeps sequences or heads from being shared so, each with what fits. `tp` cuts heads first.
Problems check_context(const ModelSpec& model, int tp, const ContextSplit& split, std::int64_t seq);

// Pairs of a query of `queries` and a key of `keys` (positions of one sequence) that it sees.
std::int64_t causal_pairs(Range queries, Range keys, std::int64_t window);

}  // namespace quatrain
