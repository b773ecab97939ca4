// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/box.h"
#include "quatrain/checkpoint/safetensors_dtype.h"
#include "quatrain/mesh/shape.h"

namespace quatrain {
namespace {

void check_agree(const TensorRecord& a, const TensorRecord& b) {
  CHECK(a.dtype == b.dtype && a.shape == b.shape, "ranks disagree about {}: {} [{}] and {} [{}]",
        to_string(a.id), a.dtype, join(a.shape, ", "), b.dtype, join(b.shape, ", "));
}

// Pieces in the order of their boxes, so that the text does not depend on who wrote what.
void sort_pieces(TensorRecord& tensor) {
  std::sort(tensor.pieces.begin(), tensor.pieces.end(),
            [](const PieceRecord& a, const PieceRecord& b) { return a.box.begin < b.box.begin; });
}

}  // namespace

std::string to_string(const TensorId& id) {
  return id.kind == "weight" ? id.name : fmt::format("{} of {}", id.kind, id.name);
}

const TensorRecord* Manifest::find(const TensorId& id) const {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), id,
                       [](const TensorRecord& t, const TensorId& want) { return t.id < want; });
  return found != tensors.end() && found->id == id ? &*found : nullptr;
}

std::int64_t Manifest::bytes() const {
  std::int64_t bytes = 0;
  for (const TensorRecord& tensor : tensors) {
    bytes += elements(tensor.shape) * itemsize_of(tensor.dtype);
  }
  return bytes;
}

std::int64_t itemsize_of(std::string_view dtype) {
  const SafetensorsDtype* found = find_safetensors_dtype(dtype);
  CHECK(found != nullptr && found->scalar, "dtype \"{}\"", dtype);
  return found->bits / 8;
}

std::int64_t bytes_of(const PieceRecord& piece, std::string_view dtype) {
  return elements(piece.box.size) * itemsize_of(dtype);
}

Manifest merge(std::vector<Manifest> parts) {
  CHECK(!parts.empty(), "no parts");
  Manifest all{.state = parts.front().state, .files = {}, .tensors = {}};
  std::map<TensorId, TensorRecord> tensors;
  for (Manifest& part : parts) {
    const std::size_t first_file = all.files.size();
    all.files.insert(all.files.end(), part.files.begin(), part.files.end());
    for (TensorRecord& tensor : part.tensors) {
      for (PieceRecord& piece : tensor.pieces) piece.file += first_file;
      const auto [place, fresh] = tensors.try_emplace(tensor.id, tensor);
      if (fresh) continue;
      check_agree(place->second, tensor);
      std::move(tensor.pieces.begin(), tensor.pieces.end(),
                std::back_inserter(place->second.pieces));
    }
  }
  for (auto& [id, tensor] : tensors) {
    sort_pieces(tensor);
    all.tensors.push_back(std::move(tensor));
  }
  return all;
}

void check_complete(const Manifest& manifest) {
  for (const TensorRecord& tensor : manifest.tensors) {
    std::vector<Box> boxes;
    for (const PieceRecord& piece : tensor.pieces) boxes.push_back(piece.box);
    const std::string fault = coverage_fault(boxes, tensor.shape);
    if (!fault.empty()) {
      throw DataError(
          fmt::format("the pieces of {} do not make it up: {}", to_string(tensor.id), fault));
    }
  }
}

}  // namespace quatrain
