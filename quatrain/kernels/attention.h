// SPDX-License-Identifier: Apache-2.0
// Causal attention in blocks with an online softmax (FlashAttention-2, arXiv:2307.08691, sections
// 3.1 and 3.2): no [T, T] buffer, blocks that the mask excludes are not computed.
// Shapes: B sequences, T queries, S keys, H query heads, K kv heads (H % K == 0), d head dim.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace quatrain::kernels {

// Which keys a query sees: key position <= query position, within `window` of it when window > 0
// (i - j < window), of the same document when documents are given. Query t of a sequence stands at
// key index t + (S - T): decoding with a cache has T < S.
struct AttentionMask {
  std::int64_t window = 0;
  at::Tensor documents_BS = {};  // int64, non-decreasing along S; undefined: one document
  // Keys that are a block of a longer row, whose queries stand elsewhere: the key index of query 0,
  // at least 0 and possibly behind the last key; with documents, those of the queries too. A query
  // may see no key then: its output is 0 and its log-sum-exp -inf.
  std::optional<std::int64_t> first_query = {};
  at::Tensor documents_BT = {};
};

struct AttentionOut {
  at::Tensor out_BTHd;
  at::Tensor lse_BHT;  // wide(dtype): natural log-sum-exp of the scaled, visible scores
};

// q, k, v: the last dim has stride 1; the others are free (views into a fused qkv buffer).
// The head dims of q and k are equal; v's may differ (MLA).
AttentionOut attention(const at::Tensor& q_BTHd, const at::Tensor& k_BSKd, const at::Tensor& v_BSKd,
                       double scale, const AttentionMask& mask);

// The same with `out` in wide(dtype): a part of the softmax, to be merged with others.
AttentionOut attention_part(const at::Tensor& q_BTHd, const at::Tensor& k_BSKd,
                            const at::Tensor& v_BSKd, double scale, const AttentionMask& mask);
// Merges a part over other keys into `all` (both wide, of the same sizes), as if one softmax had
// seen the keys of both (arXiv:2307.08691, section 3.1.1).
void merge_attention(AttentionOut& all, const AttentionOut& part);

// Writes (=) dq, dk, dv, which may be views into one fused buffer. Needs the forward's out and lse;
// where keys are a block, those of all keys: then the gradients are the block's terms.
void attention_backward(const at::Tensor& dout_BTHd, const at::Tensor& q_BTHd,
                        const at::Tensor& k_BSKd, const at::Tensor& v_BSKd,
                        const AttentionOut& forward, double scale, const AttentionMask& mask,
                        at::Tensor& dq_BTHd, at::Tensor& dk_BSKd, at::Tensor& dv_BSKd);

// Visible (query, key) pairs of one head over the batch: what FLOPs are counted from.
std::int64_t visible_pairs(std::int64_t batch, std::int64_t queries, std::int64_t keys,
                           const AttentionMask& mask);

// The same by plain matrix products with an explicit mask: the reference of the tests.
AttentionOut attention_reference(const at::Tensor& q_BTHd, const at::Tensor& k_BSKd,
                                 const at::Tensor& v_BSKd, double scale, const AttentionMask& mask);

}  // namespace quatrain::kernels
