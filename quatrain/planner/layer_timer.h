// SPDX-License-Identifier: Apache-2.0
// One layer's operations, timed.
#pragma once
#include "quatrain/cost/walk.h"
#include "quatrain/planner/layer_times.h"
#include "quatrain/planner/op_time.h"

namespace quatrain {

class LayerTimer {
 public:
  // `model`: with one block of the layer's kind. Units are walked with `shape`, of one sequence.
  // Keeps references.
  LayerTimer(const Job& job, const Geometry& geometry, const ModelSpec& model,
             const WorkShape& shape);

  // Of a block; `unrecomputed`: bytes of its stash where all is kept.
  LayerTimes block(const UnitCost& unit, double unrecomputed) const;
  // Of an embedding or head.
  LayerTimes end(const UnitCost& unit) const;

 private:
  LayerTimes timed(const UnitCost& unit, bool sparse) const;
  void keep(LayerTimes& times, double unrecomputed) const;
  void add_moving(LayerTimes& times, double bytes) const;
  void add_computing(LayerTimes& times, const OpCost& op, bool sparse) const;
  void add_scores(LayerTimes& times) const;
  bool keeps_scores() const { return job_.cluster.score_bytes > 0; }
  void add_attention(LayerTimes& times, const OpCost& op) const;
  void add_wire(LayerTimes& times, const OpCost& op) const;
  double made_again(const LayerTimes& times) const;
  double waited(double seconds) const;

  Product product_of(const OpCost& op, bool sparse) const;
  double inner(const OpCost& op) const;
  double crowding() const;

  void permute(LayerTimes& times, double rows) const;

  const Job& job_;
  const Geometry& geometry_;
  const ModelSpec& model_;
  const WorkShape& shape_;
  double scale_;  // from the walk's one sequence to the micro-batch
  double rows_;   // of the micro-batch on this rank of cp
};

}  // namespace quatrain
