// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/testing/random_job.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "quatrain/checkpoint/box.h"
#include "quatrain/comm/self/self.h"
#include "quatrain/comm/thread/thread.h"

namespace quatrain::testing {
namespace {

constexpr std::array kDtypes{at::kFloat, at::kBFloat16, at::kDouble,
                             at::kLong,  at::kByte,     at::kHalf};
constexpr std::array kKinds{"weight", "master", "exp_avg", "exp_avg_sq"};

std::vector<std::int64_t> random_shape(Draws& draws, const JobShape& limits) {
  std::vector<std::int64_t> shape;
  std::int64_t left = limits.most_elements;
  for (std::int64_t dims = draws.below(limits.most_dims + 1); dims > 0; --dims) {
    const std::int64_t size =
        draws.below(20) == 0 ? 0 : 1 + draws.below(std::min<std::int64_t>(left, 300));
    shape.push_back(size);
    left = std::max<std::int64_t>(left / std::max<std::int64_t>(size, 1), 1);
  }
  return shape;
}

// Boxes that make up the whole, from cuts anywhere.
std::vector<Box> random_boxes(Draws& draws, std::span<const std::int64_t> shape) {
  std::vector<Box> boxes{whole_box(shape)};
  for (std::int64_t cuts = draws.below(7); cuts > 0 && !shape.empty(); --cuts) {
    const auto which =
        static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(boxes.size())));
    const auto dim = static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(shape.size())));
    const std::int64_t first = draws.below(boxes[which].size[dim] + 1);
    Box rest = boxes[which];
    rest.begin[dim] += first;
    rest.size[dim] -= first;
    boxes[which].size[dim] = first;
    boxes.push_back(std::move(rest));
  }
  return boxes;
}

}  // namespace

at::Tensor random_bits(Draws& draws, std::vector<std::int64_t> shape, at::ScalarType dtype) {
  at::Tensor values = at::empty(shape, dtype);
  auto* bytes = static_cast<std::byte*>(values.data_ptr());
  for (std::size_t i = 0; i < values.nbytes(); i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = draws.bits();
    std::memcpy(bytes + i, &bits, std::min(sizeof bits, values.nbytes() - i));
  }
  return values;
}

std::vector<WholeTensor> random_tensors(Draws& draws, const JobShape& shape) {
  std::vector<WholeTensor> tensors;
  for (std::int64_t n = draws.between(1, shape.most_tensors); n > 0; --n) {
    const TensorId id{fmt::format("layers.{}.weight", n),
                      kKinds[static_cast<std::size_t>(draws.below(kKinds.size()))]};
    const at::ScalarType dtype = kDtypes[static_cast<std::size_t>(draws.below(kDtypes.size()))];
    tensors.push_back({id, random_bits(draws, random_shape(draws, shape), dtype)});
  }
  return tensors;
}

std::vector<std::vector<HeldPiece>> random_cut(Draws& draws, std::span<const WholeTensor> tensors,
                                               int ranks) {
  std::vector<std::vector<HeldPiece>> held(static_cast<std::size_t>(ranks));
  for (const WholeTensor& tensor : tensors) {
    const std::vector<std::int64_t> shape = tensor.values.sizes().vec();
    for (std::int64_t copies = draws.below(4) == 0 ? 2 : 1; copies > 0; --copies) {
      for (const Box& box : random_boxes(draws, shape)) {
        const std::int64_t first = draws.below(ranks);
        const std::int64_t holders = draws.below(3) == 0 ? draws.between(1, ranks) : 1;
        for (std::int64_t i = 0; i < holders; ++i) {
          const auto rank = static_cast<std::size_t>((first + i) % ranks);
          held[rank].push_back({tensor.id, shape, box, values_in(tensor.values, box)});
        }
      }
    }
  }
  return held;
}

std::vector<HeldPiece> empty_copy(std::span<const HeldPiece> pieces) {
  std::vector<HeldPiece> copy;
  for (const HeldPiece& piece : pieces) {
    at::Tensor values = at::empty(piece.box.size, piece.values.scalar_type());
    std::fill_n(static_cast<std::uint8_t*>(values.data_ptr()), values.nbytes(), 0xA5);
    copy.push_back({piece.id, piece.shape, piece.box, std::move(values)});
  }
  return copy;
}

std::vector<HeldPiece> whole_pieces(std::span<const WholeTensor> tensors) {
  std::vector<HeldPiece> pieces;
  for (const WholeTensor& tensor : tensors) {
    const std::vector<std::int64_t> shape = tensor.values.sizes().vec();
    pieces.push_back({tensor.id, shape, whole_box(shape), tensor.values});
  }
  return pieces;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  const auto* x_bytes = static_cast<const std::uint8_t*>(x.const_data_ptr());
  const auto* y_bytes = static_cast<const std::uint8_t*>(y.const_data_ptr());
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         std::equal(x_bytes, x_bytes + x.nbytes(), y_bytes);
}

std::string wrong_piece(std::span<const HeldPiece> pieces, std::span<const WholeTensor> tensors) {
  for (const HeldPiece& piece : pieces) {
    for (const WholeTensor& tensor : tensors) {
      if (tensor.id == piece.id && !same_bits(piece.values, values_in(tensor.values, piece.box))) {
        return to_string(piece.id) + " " + to_string(piece.box);
      }
    }
  }
  return "";
}

void for_each_rank(int ranks, const std::function<void(Communicator& comm)>& f) {
  if (ranks == 1) return f(*make_self_communicator());
  run_thread_ranks(ranks, {}, [&](std::unique_ptr<Communicator> world) { f(*world); });
}

}  // namespace quatrain::testing
