// SPDX-License-Identifier: Apache-2.0
// Pieces that attention's forward and backward share. Scores of a block are held transposed,
// [keys, queries]: the softmax then runs along the lanes of a register without horizontal sums, and
// only q (and dout) ever need a transpose.
// Every block lies in cache; d is the head dim, dp and qp are d and queries in whole registers.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "quatrain/kernels/attention_mask.h"
#include "quatrain/kernels/block_product.h"
#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/transpose.h"

namespace quatrain::kernels {

inline constexpr std::int64_t kQueryBlock = 64;
inline constexpr std::int64_t kKeyBlock = 64;

// A [B, T, H, d] tensor of elements S by its strides; the last is 1.
template <typename S>
struct HeadView {
  S* data;
  std::int64_t sequence_stride, row_stride, head_stride;

  S* at(std::int64_t sequence, std::int64_t row, std::int64_t head) const {
    return data + sequence * sequence_stride + row * row_stride + head * head_stride;
  }
};
template <typename S>
HeadView<const S> head_view(const at::Tensor& x) {
  return {data<S>(x), x.stride(0), x.stride(1), x.stride(2)};
}
template <typename S>
HeadView<S> mutable_head_view(const at::Tensor& x) {
  return {mutable_data<S>(x), x.stride(0), x.stride(1), x.stride(2)};
}

// Sizes of one call, checked by attention_sizes().
struct AttentionSizes {
  std::int64_t B, T, S, H, K, d, dv;
  std::int64_t group() const { return H / K; }
};
AttentionSizes attention_sizes(const at::Tensor& q_BTHd, const at::Tensor& k_BSKd,
                               const at::Tensor& v_BSKd);

// Cuts one allocation into blocks that begin on cache lines. Made twice: without memory it counts.
template <typename T>
class Scratch {
 public:
  explicit Scratch(T* memory) : memory_(memory) {}
  T* take(std::int64_t elements) {
    T* block = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += simd::round_up(elements, 64 / static_cast<std::int64_t>(sizeof(T)));
    return block;
  }
  std::int64_t used() const { return used_; }

 private:
  T* memory_;
  std::int64_t used_ = 0;
};

// Scratch of `pieces` threads, `each` elements of T a thread, beginning on cache lines.
template <typename T>
class ScratchTensor {
 public:
  ScratchTensor(const at::Tensor& like, std::int64_t pieces, std::int64_t each)
      : each_(each), tensor_(like.new_empty({pieces * each}, wide(like.scalar_type()))) {}
  T* piece(std::int64_t i) const { return mutable_data<T>(tensor_) + i * each_; }

 private:
  std::int64_t each_;
  at::Tensor tensor_;
};

// `rows` x `columns` of a matrix with contiguous rows, as wide elements padded with zeros to whole
// registers: the matrix itself where it is that already, else a copy in `buffer`.
template <typename T, typename S>
simd::RowBlock<const T> padded_rows(const S* x, std::int64_t row_stride, std::int64_t rows,
                                    std::int64_t columns, T* buffer) {
  const std::int64_t padded = simd::round_up(columns, simd::kLanes<T>);
  if constexpr (std::is_same_v<S, T>)
    if (padded == columns) return {x, row_stride};
  for (std::int64_t r = 0; r < rows; ++r)
    simd::for_each_vector<T>(columns, [&](std::int64_t i, const auto& io) {
      simd::store(buffer + r * padded + i, io.load(x + r * row_stride + i));
    });
  return {buffer, padded};
}
// Whether padded_rows needs its buffer.
template <typename T, typename S>
bool needs_copy(std::int64_t columns) {
  return !std::is_same_v<S, T> || columns % simd::kLanes<T> != 0;
}

// scores_kq [keys, qp] = K block times the packed queries, where the band sees it.
template <typename T>
void score_block(const Band& band, std::int64_t depth, const simd::LeftBlock<T>& left,
                 const T* packed, std::int64_t qp, T* out) {
  constexpr std::int64_t lanes = simd::kLanes<T>;
  simd::product<T>(band.keys, left, {packed, qp}, {out, qp}, false,
                   [&](std::int64_t first, std::int64_t last) {
                     const simd::Span columns{band.query_begin(first) / lanes * lanes,
                                              simd::round_up(band.query_end(last), lanes)};
                     return std::pair{columns, simd::Span{0, depth}};
                   });
}

// out [queries, width] += weights^T right, weights [keys, qp] zero outside the band.
template <typename T>
void add_over_keys(const Band& band, const T* weights, std::int64_t qp,
                   const simd::RowBlock<const T>& right, std::int64_t width,
                   const simd::RowBlock<T>& out) {
  simd::product<T>(band.queries, {weights, 1, qp}, right, out, true,
                   [&](std::int64_t first, std::int64_t last) {
                     const simd::Span inner{band.key_begin(first), band.key_end(last)};
                     return std::pair{simd::Span{0, width}, inner};
                   });
}

// out [keys, width] += weights right, weights [keys, qp] zero outside the band.
template <typename T>
void add_over_queries(const Band& band, const T* weights, std::int64_t qp,
                      const simd::RowBlock<const T>& right, std::int64_t width,
                      const simd::RowBlock<T>& out) {
  simd::product<T>(band.keys, {weights, qp, 1}, right, out, true,
                   [&](std::int64_t first, std::int64_t last) {
                     const simd::Span inner{band.query_begin(first), band.query_end(last)};
                     return std::pair{simd::Span{0, width}, inner};
                   });
}

// One register of query columns, [column, column + lanes): the keys that any of them sees, and
// those that all of them see.
struct ColumnKeys {
  simd::Span any, all;
};
template <typename T>
ColumnKeys column_keys(const Band& band, std::int64_t column) {
  const std::int64_t last = std::min(column + simd::kLanes<T>, band.queries) - 1;
  const simd::Span any{band.key_begin(column), band.key_end(last)};
  return {any, {band.key_begin(last), std::max(band.key_begin(last), band.key_end(column))}};
}

// x where the lane's query sees `key`, else `other`.
template <typename T>
simd::Vec<T> where_visible(const Band& band, std::int64_t key, std::int64_t column, simd::Vec<T> x,
                           T other) {
  T lanes[simd::kLanes<T>];
  simd::store(static_cast<T*>(lanes), x);
  for (int i = 0; i < simd::kLanes<T>; ++i) {
    const std::int64_t at = column + i + band.lead;
    if (key > at || key <= at - band.window) lanes[i] = other;
  }
  return simd::load(static_cast<const T*>(lanes));
}

}  // namespace quatrain::kernels
