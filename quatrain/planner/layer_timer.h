// SPDX-License-Identifier: Apache-2.0
// One layer's operations, timed. What the walk does not know yet is here alone: cp divides its
// rows, and experts of ep ranks send rows to each other and lie on a view of their own.
#pragma once
#include "quatrain/cost/walk.h"
#include "quatrain/planner/layer_times.h"
#include "quatrain/planner/op_time.h"

namespace quatrain {

class LayerTimer {
 public:
  // `model`: with one block of the layer's kind. Keeps references.
  LayerTimer(const Job& job, const Geometry& geometry, const ModelSpec& model);

  // Of a block; `unrecomputed`: bytes of its stash where all is kept.
  LayerTimes block(const UnitCost& unit, double unrecomputed) const;
  // Of an embedding or head.
  LayerTimes end(const UnitCost& unit) const;

 private:
  LayerTimes timed(const UnitCost& unit, bool sparse) const;
  void keep(LayerTimes& times, double unrecomputed, bool sparse) const;
  void add_moving(LayerTimes& times, double bytes) const;
  void add_computing(LayerTimes& times, const OpCost& op, bool sparse) const;
  void add_scores(LayerTimes& times) const;
  void add_wire(LayerTimes& times, const OpCost& op) const;
  double waited(double seconds) const;
  bool stays_in_rows(const OpCost& op, bool sparse) const;

  Product product_of(const OpCost& op, bool sparse) const;
  double inner(const OpCost& op) const;
  void split_by_expert(Product& p, double& width) const;

  void ring(LayerTimes& times) const;
  void permute(LayerTimes& times) const;
  void exchange(LayerTimes& times) const;
  double all_to_all_seconds() const;
  double routed_bytes() const;
  double received_bytes() const;

  const Job& job_;
  const Geometry& geometry_;
  const ModelSpec& model_;
  double rows_;  // of the micro-batch on this rank of cp
};

}  // namespace quatrain
