// SPDX-License-Identifier: Apache-2.0
#include "quatrain/nn/whole.h"

#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "quatrain/spec/tensor_split.h"

namespace quatrain {
namespace {

// By rank.
std::vector<Box> boxes_by_rank(const Param& param, int degree) {
  std::vector<Box> boxes;
  for (int rank = 0; rank < degree; ++rank) {
    boxes.push_back(param.info.placement.boxes(param.info.shape, mesh_of(degree, rank)).front());
  }
  return boxes;
}

}  // namespace

at::Tensor whole_over(Communicator& tensor, const Param& param, const at::Tensor& piece) {
  if (param.local_shape == param.info.shape) return piece;
  return whole_over(tensor, param.info.shape, boxes_by_rank(param, tensor.size()), piece);
}

at::Tensor whole_over(Communicator& holders, const std::vector<std::int64_t>& shape,
                      const std::vector<Box>& boxes, const at::Tensor& piece) {
  std::vector<std::int64_t> sizes;
  std::int64_t total = 0;
  for (const Box& box : boxes) {
    sizes.push_back(box.numel());
    total += box.numel();
  }
  const at::Tensor pieces = at::empty({total}, piece.options());
  holders.all_gather(pieces, piece.reshape({-1}), sizes).wait();
  at::Tensor whole = at::empty(shape, piece.options());
  std::int64_t begin = 0;
  for (const Box& box : boxes) {
    if (box.numel() == 0) continue;
    within(whole, box).copy_(pieces.narrow(0, begin, box.numel()).view(box.size));
    begin += box.numel();
  }
  return whole;
}

at::Tensor within(at::Tensor whole, const Box& box) {
  for (std::size_t dim = 0; dim < box.size.size(); ++dim) {
    whole = whole.narrow(static_cast<std::int64_t>(dim), box.begin[dim], box.size[dim]);
  }
  return whole;
}

}  // namespace quatrain
