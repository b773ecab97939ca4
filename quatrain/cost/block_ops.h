// SPDX-License-Identifier: Apache-2.0
// The operations of one block, of whatever parts it is made.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/cost/parameter_groups.h"
#include "quatrain/cost/stash_table.h"
#include "quatrain/cost/walk.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

// y = x W^T + b over `rows` rows, as all three passes.
OpCost linear_op(std::string name, const Group& weight, const Group& bias, std::int64_t rows);
OpCost pointwise_op(std::string name, std::int64_t parameters);
OpCost& op_named(std::vector<OpCost>& ops, std::string_view name);  // BugError when absent
// Pairs of a query and a key that it sees, over the heads and tokens that this rank computes
// attention for: `heads` of its own tokens, or, where ranks exchange them, its share of the heads
// for all tokens of its place.
std::int64_t visible_pairs(const WorkShape& shape, std::int64_t heads, std::int64_t window);

// In the order of the forward pass; `cursor`: at the block's first parameter.
std::vector<OpCost> block_ops(const ModelSpec& model, const WorkShape& shape, std::int64_t layer,
                              Cursor cursor);

// Latent attention and a mixture of experts (cost/mixture_ops.cc): append their operations, say
// what of them the stash's table asks for, and then book what they send.
void latent_attention_ops(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                          Cursor& cursor, BlockDims& dims);
void mixture_ops(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                 Cursor& cursor, BlockDims& dims);
void latent_attention_wire(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                           const BlockDims& dims);
void mixture_wire(std::vector<OpCost>& ops, const ModelSpec& model, const WorkShape& shape,
                  const BlockDims& dims);

// What attention, and routers whose balance is a sequence's, send over cp (cost/context_wire.cc).
void context_wire(std::vector<OpCost>& ops, const WorkShape& shape, const BlockDims& dims);
void sequence_counts_wire(std::vector<OpCost>& ops, const WorkShape& shape, const BlockDims& dims);

}  // namespace quatrain
