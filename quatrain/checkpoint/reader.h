// SPDX-License-Identifier: Apache-2.0
// Reads boxes of tensors out of a checkpoint, whoever wrote them: of each piece that a box meets,
// the tiles that it meets, verified by their checksums. Not collective.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quatrain/checkpoint/file_system.h"
#include "quatrain/checkpoint/piece.h"
#include "quatrain/checkpoint/storage.h"

namespace quatrain {

class CheckpointReader {
 public:
  // Reads the manifest. DataError when it is damaged or there is none.
  CheckpointReader(FileSystem& files, std::filesystem::path checkpoint);

  const Manifest& manifest() const { return manifest_; }
  const std::filesystem::path& path() const { return path_; }

  // Fills the values of every piece (=), which are contiguous and on the CPU. The tensor must be
  // there, with the piece's shape and dtype: nothing is converted. DataError naming file, tensor
  // and box for what is damaged; then some values have been written to. Memory: some MiB.
  void read(std::span<const HeldPiece> into);

  // Reads one piece of a tensor and nothing else with it. DataError when it is damaged.
  void verify(const TensorRecord& tensor, const PieceRecord& piece);

  std::int64_t bytes_read() const { return bytes_read_; }  // of data files

 private:
  struct Part;  // of a piece of the checkpoint that lies in a wanted box
  struct Slab;
  std::vector<Part> parts_of(std::span<const HeldPiece> into) const;
  void read_part(const Part& part);
  void read_slab(const Part& part, const Slab& slab);
  void read_runs(const Part& part, const Box& box, std::byte* into);
  void check_tiles(const Part& part, const Slab& slab, const std::byte* data);
  InputFile& file(std::size_t place);
  void read_bytes(std::size_t file, std::span<std::byte> into, std::int64_t offset);

  FileSystem& files_;
  std::filesystem::path path_;
  Manifest manifest_;
  std::size_t open_place_ = 0;
  std::unique_ptr<InputFile> open_;
  std::vector<std::byte> packed_;    // elements of a slab
  std::vector<std::byte> spanning_;  // bytes of several runs and what lies between
  Hasher hasher_;
  std::int64_t bytes_read_ = 0;
};

}  // namespace quatrain
