// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/piece.h"

#include <fmt/format.h>

#include <iterator>

#include "quatrain/base/check.h"
#include "quatrain/checkpoint/box.h"
#include "quatrain/checkpoint/json_scanner.h"
#include "quatrain/checkpoint/safetensors_dtype.h"
#include "quatrain/mesh/shape.h"

namespace quatrain {
namespace {

void read_numbers(JsonScanner& json, std::vector<std::int64_t>& into) {
  json.next_element();
  json.open_array();
  while (json.next_element()) into.push_back(json.integer());
}

void read_string(JsonScanner& json, std::string& into) {
  json.next_element();
  json.string(into);
}

}  // namespace

std::int64_t bytes_of(const PieceInfo& piece) {
  return elements(piece.box.size) * itemsize_of(piece.dtype);
}

PieceInfo info_of(const HeldPiece& piece) {
  const SafetensorsDtype* dtype = find_safetensors_dtype(piece.values.scalar_type());
  CHECK(dtype != nullptr, "{}: a dtype that safetensors does not know", to_string(piece.id));
  CHECK(piece.values.sizes().vec() == piece.box.size, "{}: values that are not of the box {}",
        to_string(piece.id), to_string(piece.box));
  return {piece.id, piece.shape, piece.box, std::string(dtype->name)};
}

std::vector<PieceInfo> infos_of(std::span<const HeldPiece> pieces) {
  std::vector<PieceInfo> infos;
  for (const HeldPiece& piece : pieces) infos.push_back(info_of(piece));
  return infos;
}

at::Tensor values_in(at::Tensor values, const Box& box) {
  for (std::size_t dim = 0; dim < box.size.size(); ++dim) {
    values = values.narrow(static_cast<std::int64_t>(dim), box.begin[dim], box.size[dim]);
  }
  return values;
}

std::string to_text(std::span<const PieceInfo> pieces) {
  std::string text = "[";
  for (const PieceInfo& piece : pieces) {
    text += text.size() > 1 ? ",[" : "[";
    for (const std::string* word : {&piece.id.name, &piece.id.kind, &piece.dtype}) {
      append_quoted(text, *word);
      text += ',';
    }
    fmt::format_to(std::back_inserter(text), "[{}],[{}],[{}]]", fmt::join(piece.shape, ","),
                   fmt::join(piece.box.begin, ","), fmt::join(piece.box.size, ","));
  }
  return text + "]";
}

std::vector<PieceInfo> pieces_from_text(std::string_view text) {
  std::vector<PieceInfo> pieces;
  JsonScanner json(text);
  json.open_array();
  while (json.next_element()) {
    PieceInfo& piece = pieces.emplace_back();
    json.open_array();
    for (std::string* word : {&piece.id.name, &piece.id.kind, &piece.dtype})
      read_string(json, *word);
    for (auto* numbers : {&piece.shape, &piece.box.begin, &piece.box.size})
      read_numbers(json, *numbers);
    CHECK(!json.next_element(), "a list of pieces with more than is due");
  }
  json.end();
  return pieces;
}

}  // namespace quatrain
