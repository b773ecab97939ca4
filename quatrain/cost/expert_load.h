// SPDX-License-Identifier: Apache-2.0
// How many rows the experts of a layer get in one micro-batch, of one rank: what it sends for its
// choices and what arrives (nn/expert_parallel.h says which ranks exchange rows).
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/tensor_split.h"

namespace quatrain {

// By rank of those that exchange rows; one rank: it keeps all that it routes.
struct ExpertLoad {
  std::vector<std::int64_t> to, from;
  int self = 0;                    // this rank's place
  std::int64_t arrived() const;    // rows that its experts compute
  std::int64_t sent_away() const;  // to other ranks; as many come back
  std::int64_t from_away() const;
};

// How many choices of these experts `rows` rows make.
using ChoicesOf = std::function<std::int64_t(Range experts, std::int64_t rows)>;
// Of a micro-batch of `rows` rows at every rank.
ExpertLoad load_of(std::int64_t experts, const TensorSplit& split, std::int64_t rows,
                   const ChoicesOf& choices);
// Each expert gets as many, the first ones the rest.
ExpertLoad even_load(const Experts& experts, const TensorSplit& split, std::int64_t rows);

}  // namespace quatrain
