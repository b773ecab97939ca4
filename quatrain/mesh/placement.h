// SPDX-License-Identifier: Apache-2.0
// How one tensor lies on the mesh (the terms of GSPMD and DTensor), and what turns one layout into
// another. The runtime runs the list that `conversion` returns, the cost model prices it: there is
// no second place that knows what a layout change costs.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quatrain/base/units.h"
#include "quatrain/mesh/mesh.h"

namespace quatrain {

enum class ReduceOp : std::uint8_t { kSum, kMax, kMin };

struct Replicate {
  friend bool operator==(Replicate, Replicate) = default;
};
// Cut along `dim`; pieces may be uneven: the first (size % n) are one longer. `repeat` neighbours
// hold the same piece (2 kv heads on tp 8: repeat 4). `grain`: cuts fall on multiples of it (a
// head's rows stay together). kZigzag: rank r of n holds chunks r and 2n-1-r of 2n (causal balance,
// cp).
enum class Layout : std::uint8_t { kBlock, kZigzag };
struct Shard {
  int dim = 0;
  int repeat = 1;
  std::int64_t grain = 1;
  Layout layout = Layout::kBlock;
  friend bool operator==(Shard, Shard) = default;
};
struct Partial {
  ReduceOp op = ReduceOp::kSum;
  friend bool operator==(Partial, Partial) = default;
};
using Placement = std::variant<Replicate, Shard, Partial>;

// A rectangular piece of a global tensor: `begin` and `size` in every dim.
struct Box {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> size;
  std::int64_t numel() const;
  friend bool operator==(const Box&, const Box&) = default;
};

// [begin, end) of piece `index` when `size` elements (in units of `grain`) are dealt to `pieces`.
struct Range {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t size() const { return end - begin; }
  friend bool operator==(Range, Range) = default;
};
Range piece(std::int64_t size, int pieces, int index, std::int64_t grain = 1);

struct ShardSpec {
  struct On {
    AxisSet axes;
    Placement placement;
    friend bool operator==(const On&, const On&) = default;
  };
  std::vector<On> on;  // axes that are not named: replicated

  // The boxes of the global tensor that `mesh.rank()` holds, in local order (zigzag: two, or one
  // where the two touch). Entries that cut the same dim nest: each cuts what the one before left.
  std::vector<Box> boxes(std::span<const std::int64_t> global, const Mesh& mesh) const;
  // Shape of what this rank holds: the boxes laid end to end along the zigzag dim.
  std::vector<std::int64_t> local_shape(std::span<const std::int64_t> global,
                                        const Mesh& mesh) const;
  friend bool operator==(const ShardSpec&, const ShardSpec&) = default;
};
std::string to_string(const ShardSpec& spec);

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSlice,
  kSend  // between two ranks: no conversion makes it
};
struct Collective {
  CollectiveKind kind;
  AxisSet axes;
  int tensor_dim;  // along which pieces lie (all_to_all: the dim that is gathered; all_reduce: -1)
  Bytes bytes_sent;              // by one rank (the fullest), ring convention; kSlice: 0
  int split_dim = -1;            // all_to_all: the dim that is cut
  ReduceOp op = ReduceOp::kSum;  // all_reduce, reduce_scatter
  friend bool operator==(const Collective&, const Collective&) = default;
};

std::string_view name(CollectiveKind kind);           // "all_gather", as counters call it
std::string to_string(const Collective& collective);  // "all_gather dim 0 on dp_shard: 512 B"

// The collectives that turn `from` into `to`, in order; empty when they are equal. Axes of degree 1
// are not named. With n ranks and S bytes that each holds before (all_gather: after): all_reduce
// sends 2 (n-1) ceil(S/n), all_gather and reduce_scatter (n-1) pieces padded to the largest, and
// all_to_all what leaves the rank, unpadded. A repeated piece is gathered as often as it is held.
// Throws BugError for pairs that no list of these can convert (Replicate to Partial).
std::vector<Collective> conversion(const ShardSpec& from, const ShardSpec& to,
                                   std::span<const std::int64_t> global_shape, Bytes element_size,
                                   const Mesh& mesh);

}  // namespace quatrain
