// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint: what was trained, and where every element of every tensor lies.
// docs/checkpoint_format.md describes it for readers of other programs.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/checkpoint/checksum.h"
#include "quatrain/mesh/placement.h"

namespace quatrain {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::int64_t kCheckpointVersion = 1;

// Where training stands; the same on every rank. Random numbers are functions of the seed and of
// coordinates, so there is no other state of theirs.
struct TrainingState {
  std::int64_t step = 0;    // steps done
  std::int64_t tokens = 0;  // seen so far
  std::uint64_t seed = 0;
  std::int64_t optimizer_steps = 0;
  std::vector<std::int64_t> data_cursor = {};  // samples consumed of each source
  std::string plan = "{}";                     // JSON object: the geometry that saved
  std::string plan_hash = {};
  std::string library = {};  // "quatrain 0.1.0"
  std::map<std::string, std::string> extra = {};
  friend bool operator==(const TrainingState&, const TrainingState&) = default;
};

// A tensor is a parameter's weight or state of its optimizer.
struct TensorId {
  std::string name;  // of the parameter
  std::string kind;  // "weight", "master", "exp_avg", ...
  friend auto operator<=>(const TensorId&, const TensorId&) = default;
};
std::string to_string(const TensorId& id);  // "model.norm.weight", "exp_avg of model.norm.weight"

struct PieceRecord {
  Box box;                          // of the tensor
  std::size_t file = 0;             // place in Manifest::files
  std::int64_t begin = 0;           // first byte in the file; row-major from there
  std::vector<std::int64_t> tile;   // tiles.h
  std::vector<Checksum> checksums;  // of the tiles
};
struct TensorRecord {
  TensorId id;
  std::string dtype;  // as safetensors calls it
  std::vector<std::int64_t> shape;
  std::vector<PieceRecord> pieces;
};
struct FileRecord {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;  // before the buffer
  Checksum header = {};           // of those
};
struct Manifest {
  TrainingState state;
  std::vector<FileRecord> files;      // by name
  std::vector<TensorRecord> tensors;  // by id

  const TensorRecord* find(const TensorId& id) const;
  std::int64_t bytes() const;  // of all tensors
};

std::int64_t itemsize_of(std::string_view dtype);  // BugError for an unknown one
std::int64_t bytes_of(const PieceRecord& piece, std::string_view dtype);

std::string to_json(const Manifest& manifest);
// DataError naming what is wrong. What it returns is consistent: dtypes are known, pieces lie in
// their tensors and files, every tile has its checksum. Pieces may be missing or overlap.
Manifest manifest_from_json(std::string_view text);

// One manifest of what each of several ranks wrote; the state is the first's. BugError when parts
// disagree about a tensor.
Manifest merge(std::vector<Manifest> parts);
// DataError naming the first tensor whose elements are not each held by exactly one piece.
void check_complete(const Manifest& manifest);

}  // namespace quatrain
