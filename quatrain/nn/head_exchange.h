// SPDX-License-Identifier: Apache-2.0
// The exchange of tokens for heads between the ranks of one place (DeepSpeed-Ulysses,
// arXiv:2309.14509): each has some tokens of all heads before, all tokens of the place with some
// heads after. Where there are fewer heads of keys and values than ranks, neighbours get the same
// one, and the way back adds up what they made of it.
// Shapes: B sequences, T tokens of a rank, P of its place.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/spec/context_split.h"

namespace quatrain {

class HeadExchange {
 public:
  // `group` (borrowed): all ranks of cp.
  HeadExchange(Communicator& group, const ContextSplit& split) : group_(group), split_(split) {}

  // Each [B, T, heads, d] -> this rank's heads of it, [B, P, ., d], one after the other in one
  // buffer. `seq`: of a whole sequence.
  at::Tensor to_heads(std::span<const at::Tensor> own, std::int64_t seq) const;
  // The tensors in such a buffer, whose own forms are like `own`.
  std::vector<at::Tensor> views(const at::Tensor& flat, std::span<const at::Tensor> own,
                                std::int64_t seq) const;
  // The way back: writes (=) `own`.
  void to_tokens(std::span<const at::Tensor> heads, std::span<const at::Tensor> own,
                 std::int64_t seq) const;

 private:
  std::vector<std::int64_t> tokens_of_place(std::int64_t seq) const;
  std::vector<std::int64_t> rows_of_group(std::span<const std::int64_t> of_place) const;
  Range heads_of(const at::Tensor& own, int index) const;

  Communicator& group_;
  ContextSplit split_;
};

}  // namespace quatrain
