// SPDX-License-Identifier: Apache-2.0
// The file that one rank writes: what it owns of every tensor, in one safetensors file, whose bytes
// are known before the first one is written.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "quatrain/checkpoint/file_system.h"
#include "quatrain/checkpoint/ownership.h"
#include "quatrain/checkpoint/piece.h"

namespace quatrain {

// One box of a rank's file and its elements.
struct FilePiece {
  PieceInfo info;     // box: what is written
  at::Tensor values;  // of the box's sizes; any strides
};
// What the rank writes, in the order of its file: widest dtype first, as safetensors does, so that
// every piece is aligned. Views of `held`.
std::vector<FilePiece> file_pieces(std::span<const HeldPiece> held,
                                   std::span<const OwnedBox> owned);

// A copy of elements in a buffer that is used again and again, in two parts, so that the larger one
// can be a background thread's: what is written from it while training goes on. As large as the
// largest snapshot.
class Snapshot {
 public:
  // Pieces with values in this buffer, valid until the next call. Contiguous values on the CPU are
  // copied by fill(), and stay as they are until then; others have been when this returns.
  std::vector<FilePiece> begin(std::vector<FilePiece> pieces);
  // On any thread: plain copies of memory, which start no compute threads.
  void fill();

 private:
  struct Copy {
    at::Tensor to, from;
  };
  at::Tensor buffer_;
  std::vector<Copy> copies_;  // that are left
};

// What a piece is called in its file: "<kind>/<name>@<offset>", "weight/norm.weight@128".
std::string piece_key(const TensorId& id, const Box& box);
std::string rank_file_name(int rank);  // "rank-00003.safetensors"

// Writes the file durably and says what is in it; no file for no pieces. Values that are not
// contiguous or not on the CPU are copied, a piece at a time.
Manifest write_rank_file(FileSystem& files, const std::filesystem::path& folder, int rank,
                         std::span<const FilePiece> pieces);

}  // namespace quatrain
