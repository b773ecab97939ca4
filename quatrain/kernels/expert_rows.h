// SPDX-License-Identifier: Apache-2.0
// Rows gathered by expert and brought back: a counting sort of the choices, and products in which
// every run of rows has a matrix of its own.
// Shapes: N rows, k choices each, M = N k rows by expert, E experts, D width.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "quatrain/kernels/matmul.h"

namespace quatrain::kernels {

// Row m is choice `choice_M[m]` (= n k + j), sorted by expert, then by n. Expert e's are rows
// [begin[e], begin[e + 1]). `row_Nk`: where each choice lies; -1: it has no row.
struct ExpertRows {
  at::Tensor choice_M;  // int64
  at::Tensor row_Nk;    // int64
  std::vector<std::int64_t> begin;
  std::int64_t count() const { return begin.back(); }
};
// Choices below 0 get none.
ExpertRows sort_by_expert(const at::Tensor& experts_Nk, std::int64_t experts);

// Row m of the result is x's row of that choice.
at::Tensor gather_by_expert(const at::Tensor& x_ND, const ExpertRows& rows);
// Its transpose: row n is the sum of its choices' rows, made in the wide type in the order of
// choices and rounded once.
at::Tensor sum_by_row(const at::Tensor& y_MD, const ExpertRows& rows);

// Of each choice its row's number, 0 where it has none.
at::Tensor by_choice(const at::Tensor& x_M, const ExpertRows& rows);

// x's row m *= scales[m]; wide scales.
void scale_rows_(at::Tensor& x_MD, const at::Tensor& scales_M);
// Row by row a . b, wide.
at::Tensor row_dots(const at::Tensor& a_MD, const at::Tensor& b_MD);

// out's rows [begin[e], begin[e + 1]) = x's times op(matrices[e]).
void grouped_matmul_out(at::Tensor& out_MO, const at::Tensor& x_MI,
                        std::span<const at::Tensor> matrices, bool transposed,
                        std::span<const std::int64_t> begin);

}  // namespace quatrain::kernels
