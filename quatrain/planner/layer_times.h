// SPDX-License-Identifier: Apache-2.0
// What one micro-batch costs one rank, layer by layer: the operations of cost/'s walk, timed.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "quatrain/cost/walk.h"
#include "quatrain/planner/geometry.h"

namespace quatrain {

// Seconds, bytes, FLOPs and parameters of one layer and micro-batch on one rank.
struct LayerTimes {
  double forward = 0, input = 0, weight = 0;  // computing
  double tp = 0, cp = 0, ep = 0;              // communication that computing waits for
  double hiding = 0, hiding_input = 0;        // of computing, under which cp's rings run
  double stash = 0;                           // from the forward to the input half
  double scores = 0;                          // of the stash, attention's
  double late = 0;                            // from the input half to the weight half
  double growth = 0;                          // the most that an input half adds to the stash
  double working = 0;                         // stash of a layer that is not recomputed
  double products = 0, last_product = 0;      // of forward: all of a block's, its last
  double flops = 0;                           // of all passes
  double parameters = 0;                      // outside experts
  double experts = 0;                         // in routed experts
  double compute() const { return forward + input + weight; }
  double exposed() const { return tp + cp + ep; }
  double total() const { return compute() + exposed(); }
  void add(const LayerTimes& layer, double count);
  void put_all_into_forward();
};

// Blocks differ by whether they have experts and by their window.
inline constexpr std::size_t kMostKinds = 4;
struct MicrobatchTimes {
  std::array<LayerTimes, kMostKinds> block;  // of each kind
  LayerTimes embedding, head;
  double table = 0;          // parameters of the token table, of a tied head's copy
  double message_bytes = 0;  // to the next stage
  double logits = 0;         // bytes: a chunk, or all where software keeps them
};
// Seconds to the next stage.
double message_seconds(const Job& job, const MicrobatchTimes& times, const Geometry& geometry);

// Remembers what it has walked and timed: many thousand plans share a few hundred.
class LayerTable {
 public:
  explicit LayerTable(const Job& job);  // keeps a reference
  ~LayerTable();
  // Throws ConfigError for degrees that do not divide the model.
  const MicrobatchTimes& at(const Geometry& geometry);
  const std::vector<int>& kinds() const { return kinds_; }  // [block]
  double model_flops_per_sequence() const { return flops_; }
  // Blocks of each stage as balanced_layers() cuts them.
  const std::vector<std::int64_t>& cut(int stages);

 private:
  struct Walked;
  using Parameters = std::vector<std::vector<LocalParameter>>;  // [kind]
  using Key = std::array<std::int64_t, 6>;
  static std::int64_t way_of(const Geometry& geometry);
  const Parameters& parameters(const TensorSplit& split);
  const Walked& walked(const Geometry& geometry);
  double logits(const WorkShape& shape) const;

  const Job& job_;
  std::vector<int> kinds_;
  std::vector<ModelSpec> models_;  // [kind] with one block
  double flops_ = 0;
  std::map<std::array<int, 3>, Parameters> parameters_;
  std::map<Key, std::unique_ptr<Walked>> walks_;
  std::map<Key, MicrobatchTimes> times_;
  std::map<int, std::vector<std::int64_t>> cuts_;
};

}  // namespace quatrain
