// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/box.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/checkpoint/tiles.h"

namespace quatrain {
namespace {

// Small enough to be in the cache still when checksums are made.
constexpr std::int64_t kSlabBytes = 1 << 20;
// Bytes between two runs that cost less to read than a second call.
constexpr std::int64_t kGapBytes = 512;

Box shifted(Box box, std::span<const std::int64_t> by) {
  for (std::size_t dim = 0; dim < by.size(); ++dim) box.begin[dim] += by[dim];
  return box;
}

std::byte* memory_of(const HeldPiece& piece) {
  return static_cast<std::byte*>(piece.values.data_ptr());
}

}  // namespace

struct CheckpointReader::Part {
  const TensorRecord* tensor;
  const PieceRecord* piece;
  const HeldPiece* into;  // null: to be verified alone
  Box region;             // of the tensor
};

// Whole tiles of a piece that are read at once.
struct CheckpointReader::Slab {
  const TileGrid& grid;
  Box box;             // of the piece
  std::int64_t bytes;  // of its elements
};

CheckpointReader::CheckpointReader(FileSystem& files, std::filesystem::path checkpoint)
    : files_(files), path_(std::move(checkpoint)), manifest_(read_manifest(files, path_)) {}

void CheckpointReader::read(std::span<const HeldPiece> into) {
  for (const Part& part : parts_of(into)) read_part(part);
  open_.reset();
}

void CheckpointReader::verify(const TensorRecord& tensor, const PieceRecord& piece) {
  if (piece.box.numel() > 0) read_part({&tensor, &piece, nullptr, piece.box});
}

// In the order of the bytes, so that files are read forwards.
std::vector<CheckpointReader::Part> CheckpointReader::parts_of(
    std::span<const HeldPiece> into) const {
  std::vector<Part> parts;
  for (const HeldPiece& held : into) {
    const PieceInfo info = info_of(held);
    const TensorRecord* tensor = manifest_.find(info.id);
    if (tensor == nullptr || tensor->shape != info.shape || tensor->dtype != info.dtype) {
      throw DataError(fmt::format("{} holds no {} of dtype {} and shape [{}]", path_.string(),
                                  to_string(info.id), info.dtype, join(info.shape, ", ")));
    }
    CHECK(inside(info.box, info.shape) && held.values.is_contiguous() && held.values.is_cpu(),
          "{}: cannot be read into", to_string(info.id));
    std::int64_t found = 0;
    for (const PieceRecord& piece : tensor->pieces) {
      const auto region = intersection(piece.box, info.box);
      if (!region || info.box.numel() == 0) continue;
      found += region->numel();
      parts.push_back({tensor, &piece, &held, *region});
    }
    CHECK(found == info.box.numel(), "{} {} is not covered", to_string(info.id),
          to_string(info.box));
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return std::tie(a.piece->file, a.piece->begin) < std::tie(b.piece->file, b.piece->begin);
  });
  return parts;
}

void CheckpointReader::read_part(const Part& part) {
  const TileGrid grid{part.piece->box.size, part.piece->tile};
  const std::int64_t itemsize = itemsize_of(part.tensor->dtype);
  const Box tiles = grid.around(relative_to(part.region, part.piece->box.begin));
  for (const Box& box : row_parts(grid, tiles, itemsize, kSlabBytes)) {
    read_slab(part, {grid, box, box.numel() * itemsize});
  }
}

void CheckpointReader::read_slab(const Part& part, const Slab& slab) {
  const std::int64_t itemsize = itemsize_of(part.tensor->dtype);
  const Box box = shifted(slab.box, part.piece->box.begin);  // of the tensor
  const Box wanted = *intersection(box, part.region);
  if (part.into != nullptr && wanted == box) {
    const HeldPiece& held = *part.into;
    const Runs runs = runs_of(relative_to(wanted, held.box.begin), held.box.size);
    if (runs.begins.size() == 1) {  // straight to where it belongs
      std::byte* place = memory_of(held) + runs.begins.front() * itemsize;
      read_runs(part, slab.box, place);
      return check_tiles(part, slab, place);
    }
  }
  packed_.resize(static_cast<std::size_t>(slab.bytes));
  read_runs(part, slab.box, packed_.data());
  check_tiles(part, slab, packed_.data());
  if (part.into == nullptr) return;
  copy_region({memory_of(*part.into), &part.into->box}, {packed_.data(), &box}, wanted, itemsize);
}

// Runs that are close to each other are read together.
void CheckpointReader::read_runs(const Part& part, const Box& box, std::byte* into) {
  const std::int64_t itemsize = itemsize_of(part.tensor->dtype);
  const Runs runs = runs_of(box, part.piece->box.size);
  const auto length = static_cast<std::size_t>(runs.length * itemsize);
  const auto at = [&](std::size_t run) { return runs.begins[run] * itemsize; };
  for (std::size_t first = 0; first < runs.begins.size();) {
    std::size_t last = first;
    while (last + 1 < runs.begins.size() &&
           at(last + 1) - at(last) <= runs.length * itemsize + kGapBytes) {
      ++last;
    }
    const std::int64_t offset = part.piece->begin + at(first);
    if (first == last) {
      read_bytes(part.piece->file, {into, length}, offset);
    } else {
      spanning_.resize(static_cast<std::size_t>(at(last) - at(first)) + length);
      read_bytes(part.piece->file, spanning_, offset);
      for (std::size_t run = first; run <= last; ++run) {
        std::copy_n(spanning_.data() + (at(run) - at(first)), length,
                    into + (run - first) * length);
      }
    }
    into += (last - first + 1) * length;
    first = last + 1;
  }
}

void CheckpointReader::check_tiles(const Part& part, const Slab& slab, const std::byte* data) {
  const std::int64_t itemsize = itemsize_of(part.tensor->dtype);
  for (const TileSum& tile : tile_sums(slab.grid, slab.box, data, itemsize, hasher_)) {
    if (tile.sum == part.piece->checksums[static_cast<std::size_t>(tile.place)]) continue;
    const Box box = shifted(slab.grid.box(tile.place), part.piece->box.begin);
    throw DataError(fmt::format("{}: {} {} does not have its checksum",
                                (path_ / manifest_.files[part.piece->file].name).string(),
                                to_string(part.tensor->id), to_string(box)));
  }
}

// Opens the file when it is not the open one, and believes it when its size and header are right.
InputFile& CheckpointReader::file(std::size_t place) {
  if (open_ != nullptr && open_place_ == place) return *open_;
  open_.reset();
  const FileRecord& record = manifest_.files[place];
  auto file = std::make_unique<InputFile>(files_, path_ / record.name);
  const std::string name = file->path().string();
  if (file->size() != record.bytes) {
    throw DataError(fmt::format("{} has {} bytes where {} were written ({})", name, file->size(),
                                record.bytes, file->size() < record.bytes ? "truncated" : "extra"));
  }
  std::vector<std::byte> header(static_cast<std::size_t>(record.header_bytes));
  file->read(header, 0);
  bytes_read_ += record.header_bytes;
  if (checksum(header) != record.header) {
    throw DataError(fmt::format("{}: its header does not have its checksum", name));
  }
  open_ = std::move(file);
  open_place_ = place;
  return *open_;
}

void CheckpointReader::read_bytes(std::size_t place, std::span<std::byte> into,
                                  std::int64_t offset) {
  file(place).read(into, offset);
  bytes_read_ += static_cast<std::int64_t>(into.size());
}

}  // namespace quatrain
