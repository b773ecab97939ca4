// SPDX-License-Identifier: Apache-2.0
#include "quatrain/cost/expert_load.h"

#include <algorithm>
#include <numeric>

namespace quatrain {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

}  // namespace

std::int64_t ExpertLoad::arrived() const { return sum(from); }
std::int64_t ExpertLoad::sent_away() const { return sum(to) - to[static_cast<std::size_t>(self)]; }
std::int64_t ExpertLoad::from_away() const {
  return sum(from) - from[static_cast<std::size_t>(self)];
}

ExpertLoad load_of(std::int64_t experts, const TensorSplit& split, std::int64_t rows,
                   const ChoicesOf& choices) {
  const ExpertSplit place = split.expert_split();
  const int shares = std::min(place.etp, split.degree), copies = split.expert_copies();
  const int own = place.ep_rank * place.etp + place.etp_rank;  // in the block that holds all
  const auto rows_of = [&](int tp_rank) {
    return piece(rows, split.expert_slices(), split.expert_slice(tp_rank)).size();
  };
  ExpertLoad load;
  for (int rank = 0; rank < split.exchange_ranks(); ++rank) {
    const int block = rank / copies;
    const int there = block * place.etp + rank % copies * shares + place.etp_rank % shares;
    // Neighbours along tp are neighbours in the block.
    const int tp_rank = ((split.rank + there - own) % split.degree + split.degree) % split.degree;
    const Range held = piece(experts, place.ep, block);
    load.to.push_back(choices(held, rows_of(split.rank)));
    load.from.push_back(choices(place.held(experts), rows_of(tp_rank)));
    if (there == own) load.self = rank;
  }
  return load;
}

ExpertLoad even_load(const Experts& experts, const TensorSplit& split, std::int64_t rows) {
  return load_of(experts.num_experts, split, rows, [&](Range held, std::int64_t of_rows) {
    const std::int64_t choices = of_rows * experts.top_k;
    const std::int64_t each = choices / experts.num_experts, rest = choices % experts.num_experts;
    const auto upto = [&](std::int64_t expert) { return expert * each + std::min(expert, rest); };
    return upto(held.end) - upto(held.begin);
  });
}

}  // namespace quatrain
