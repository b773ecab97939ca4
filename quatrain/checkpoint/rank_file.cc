// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/rank_file.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "quatrain/checkpoint/box.h"
#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/checkpoint/safetensors_dtype.h"
#include "quatrain/checkpoint/storage.h"
#include "quatrain/checkpoint/tiles.h"

namespace quatrain {
namespace {

constexpr std::int64_t kPartWritten = 1 << 20;  // bytes

bool file_order(const FilePiece& a, const FilePiece& b) {
  const int rank_a = find_safetensors_dtype(a.info.dtype)->rank;
  const int rank_b = find_safetensors_dtype(b.info.dtype)->rank;
  if (rank_a != rank_b) return rank_a > rank_b;
  if (a.info.id != b.info.id) {
    return std::tie(a.info.id.kind, a.info.id.name) < std::tie(b.info.id.kind, b.info.id.name);
  }
  return a.info.box.begin < b.info.box.begin;
}

std::vector<TensorEntry> entries_of(std::span<const FilePiece> pieces) {
  std::vector<TensorEntry> entries;
  std::int64_t begin = 0;
  for (const FilePiece& piece : pieces) {
    const PieceInfo& info = piece.info;
    const std::int64_t end = begin + bytes_of(info);
    entries.push_back({piece_key(info.id, info.box), info.dtype, info.box.size, begin, end});
    begin = end;
  }
  return entries;
}

std::span<const std::byte> memory_of(const at::Tensor& values) {
  return {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()};
}

// Part by part, so that bytes are in the cache when they are written.
PieceRecord write_piece(OutputFile& file, const FilePiece& piece, std::int64_t begin,
                        Hasher& hasher) {
  const std::int64_t itemsize = itemsize_of(piece.info.dtype);
  const TileGrid grid = make_tiles(piece.info.box.size, itemsize);
  PieceRecord record{piece.info.box, 0, begin, grid.tile, {}};
  const at::Tensor values = piece.values.to(at::kCPU).contiguous();
  std::span<const std::byte> bytes = memory_of(values);
  for (const Box& part : row_parts(grid, whole_box(grid.shape), itemsize, kPartWritten)) {
    for (const TileSum& tile : tile_sums(grid, part, bytes.data(), itemsize, hasher)) {
      record.checksums.push_back(tile.sum);
    }
    const auto size = static_cast<std::size_t>(part.numel() * itemsize);
    file.write(bytes.first(size));
    bytes = bytes.subspan(size);
  }
  return record;
}

}  // namespace

std::vector<FilePiece> file_pieces(std::span<const HeldPiece> held,
                                   std::span<const OwnedBox> owned) {
  std::vector<FilePiece> pieces;
  for (const OwnedBox& own : owned) {
    const HeldPiece& piece = held[own.place];
    PieceInfo info = info_of(piece);
    info.box = own.box;
    pieces.push_back(
        {std::move(info), values_in(piece.values, relative_to(own.box, piece.box.begin))});
  }
  std::sort(pieces.begin(), pieces.end(), file_order);
  return pieces;
}

std::vector<FilePiece> Snapshot::begin(std::vector<FilePiece> pieces) {
  copies_.clear();
  std::int64_t bytes = 0;
  for (const FilePiece& piece : pieces) bytes += bytes_of(piece.info);
  if (!buffer_.defined() || buffer_.numel() < bytes) {
    buffer_ = at::Tensor();  // freed before the larger one is made
    buffer_ = at::empty({bytes}, at::kByte);
  }
  std::int64_t begin = 0;
  for (FilePiece& piece : pieces) {
    const std::int64_t size = bytes_of(piece.info);
    at::Tensor copy =
        buffer_.narrow(0, begin, size).view(piece.values.scalar_type()).view(piece.info.box.size);
    if (!piece.values.is_cpu() || !piece.values.is_contiguous()) {
      copy.copy_(piece.values);
    } else if (size > 0) {
      copies_.push_back({copy, piece.values});
    }
    piece.values = std::move(copy);
    begin += size;
  }
  return pieces;
}

void Snapshot::fill() {
  for (const Copy& copy : std::exchange(copies_, {})) {
    std::memcpy(copy.to.mutable_data_ptr(), copy.from.const_data_ptr(), copy.from.nbytes());
  }
}

std::string piece_key(const TensorId& id, const Box& box) {
  return fmt::format("{}/{}@{}", id.kind, id.name, fmt::join(box.begin, ","));
}

std::string rank_file_name(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

Manifest write_rank_file(FileSystem& files, const std::filesystem::path& folder, int rank,
                         std::span<const FilePiece> pieces) {
  Manifest part;
  if (pieces.empty()) return part;
  const std::vector<TensorEntry> entries = entries_of(pieces);
  const std::string header = make_safetensors_header(entries, {{"format", "pt"}});
  const auto header_bytes = static_cast<std::int64_t>(header.size());
  part.files.push_back(
      {rank_file_name(rank), header_bytes + entries.back().end, header_bytes, checksum(header)});

  OutputFile file(files, folder / rank_file_name(rank));
  file.write(std::as_bytes(std::span(header)));
  Hasher hasher;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const PieceInfo& info = pieces[i].info;
    if (part.tensors.empty() || part.tensors.back().id != info.id) {
      part.tensors.push_back({info.id, info.dtype, info.shape, {}});
    }
    part.tensors.back().pieces.push_back(
        write_piece(file, pieces[i], header_bytes + entries[i].begin, hasher));
  }
  file.finish();
  std::sort(part.tensors.begin(), part.tensors.end(),
            [](const TensorRecord& a, const TensorRecord& b) { return a.id < b.id; });
  return part;
}

}  // namespace quatrain
