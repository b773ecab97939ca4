// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/router.h"

namespace quatrain::kernels {
namespace {

// Choices in the order in which they ask for room.
std::vector<std::int64_t> asking(const at::Tensor& weights_Nk, DropBy by) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(weights_Nk.numel()));
  std::iota(order.begin(), order.end(), 0);
  if (by == DropBy::kPosition) return order;
  dispatch(weights_Nk.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* weight = data<T>(weights_Nk);
    std::stable_sort(order.begin(), order.end(), [weight](std::int64_t a, std::int64_t b) {
      return load(weight[a]) > load(weight[b]);
    });
  });
  return order;
}

}  // namespace

std::int64_t ExpertCapacity::rows(std::int64_t rows, std::int64_t top_k,
                                  std::int64_t experts) const {
  const double even = static_cast<double>(rows * top_k) / static_cast<double>(experts);
  return static_cast<std::int64_t>(std::ceil(factor * even));
}

at::Tensor limit_experts(const at::Tensor& experts_Nk, const at::Tensor& weights_Nk,
                         std::int64_t experts, const ExpertCapacity& capacity) {
  CHECK(experts_Nk.is_contiguous() && weights_Nk.is_contiguous() &&
            experts_Nk.sizes() == weights_Nk.sizes(),
        "choices and weights that differ");
  at::Tensor limited_Nk = experts_Nk.clone();
  auto* expert = mutable_data<std::int64_t>(limited_Nk);
  const std::int64_t room = capacity.rows(experts_Nk.size(0), experts_Nk.size(1), experts);
  std::vector<std::int64_t> left(static_cast<std::size_t>(experts), room);
  for (const std::int64_t choice : asking(weights_Nk, capacity.by)) {
    if (left[static_cast<std::size_t>(expert[choice])]-- <= 0) expert[choice] = ~expert[choice];
  }
  return limited_Nk;
}

}  // namespace quatrain::kernels
