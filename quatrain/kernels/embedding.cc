// SPDX-License-Identifier: Apache-2.0
// Rows of a table by id, and the gradient of that. Threads take columns of every row, so that each
// element of the gradient receives its terms in the order of N whatever the team.
#include <ATen/ops/empty.h>

#include <cstring>

#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/parallel.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/scalar.h"

namespace quatrain::kernels {
namespace {

// Contiguous ids, all within [0, vocabulary).
at::Tensor checked_ids(const at::Tensor& ids_N, std::int64_t vocabulary) {
  CHECK(ids_N.scalar_type() == at::kLong, "ids are {}", c10::toString(ids_N.scalar_type()));
  const at::Tensor ids = ids_N.contiguous();
  const auto* const id = data<std::int64_t>(ids);
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    CHECK(id[i] >= 0 && id[i] < vocabulary, "token id {} in a vocabulary of {}", id[i], vocabulary);
  }
  return ids;
}

}  // namespace

at::Tensor embedding(const at::Tensor& table_VD, const at::Tensor& ids_N, const VocabShare& share) {
  CHECK(table_VD.dim() == 2 && table_VD.stride(1) == 1, "an embedding table is a matrix of rows");
  const at::Tensor ids = checked_ids(ids_N, share.vocab);
  const std::int64_t words = table_VD.size(0);
  const std::int64_t width = table_VD.size(1);
  const std::int64_t stride = table_VD.stride(0);
  at::Tensor out = at::empty({ids.numel(), width}, table_VD.options());
  const std::size_t row_bytes = static_cast<std::size_t>(width) * table_VD.element_size();
  const std::size_t stride_bytes = static_cast<std::size_t>(stride) * table_VD.element_size();
  const auto* const from = data<std::byte>(table_VD);
  auto* const to = mutable_data<std::byte>(out);
  const auto* const id = data<std::int64_t>(ids);
  parallel_ranges(ids.numel(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::byte* const row = to + static_cast<std::size_t>(i) * row_bytes;
      const std::int64_t word = id[i] - share.begin;
      if (word >= 0 && word < words) {
        std::memcpy(row, from + static_cast<std::size_t>(word) * stride_bytes, row_bytes);
      } else {
        std::memset(row, 0, row_bytes);
      }
    }
  });
  return out;
}

void embedding_add_grad(at::Tensor& grad_VD, const at::Tensor& ids_N, const at::Tensor& dy_ND,
                        const VocabShare& share) {
  CHECK(grad_VD.dim() == 2 && dy_ND.dim() == 2 && grad_VD.size(1) == dy_ND.size(1) &&
            dy_ND.size(0) == ids_N.numel(),
        "an embedding's gradient [{}, {}] from [{}, {}] for {} ids", grad_VD.size(0),
        grad_VD.size(1), dy_ND.size(0), dy_ND.size(1), ids_N.numel());
  CHECK(grad_VD.scalar_type() == wide(dy_ND.scalar_type()),
        "gradients are summed in the wide type");
  CHECK(dy_ND.size(1) <= 1 || (dy_ND.stride(1) == 1 && grad_VD.stride(1) == 1),
        "rows have stride {} and {}", dy_ND.stride(1), grad_VD.stride(1));
  const at::Tensor ids = checked_ids(ids_N, share.vocab);
  const std::int64_t words = grad_VD.size(0);
  dispatch(dy_ND.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* const grad = mutable_data<Wide<T>>(grad_VD);
    const T* const dy = data<T>(dy_ND);
    const auto* const id = data<std::int64_t>(ids);
    const std::int64_t grad_stride = grad_VD.stride(0);
    const std::int64_t dy_stride = dy_ND.stride(0);
    parallel_ranges(dy_ND.size(1), 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = 0; i < ids.numel(); ++i) {
        const std::int64_t word = id[i] - share.begin;
        if (word < 0 || word >= words) continue;
        Wide<T>* __restrict const to = grad + word * grad_stride;
        const T* __restrict const from = dy + i * dy_stride;
        for (std::int64_t d = begin; d < end; ++d) to[d] += load(from[d]);
      }
    });
  });
}

}  // namespace quatrain::kernels
