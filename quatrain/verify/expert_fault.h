// SPDX-License-Identifier: Apache-2.0
// Faults of experts and their routers. Private to verify/.
#pragma once
#include <span>

#include "quatrain/verify/planted_fault.h"

namespace quatrain {

// The load-balance loss is scaled, as by the number of ranks that hold experts.
class ScaledBalance final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void change(RankJobOptions& options) override;
};

// Experts' gradients as means over all data ranks, where a sum over those that hold them is meant.
class MeanExperts final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void on_gradients() override;
};

// What goes along with rows between ranks, one number a row: weights of choices, and back their
// gradients.
class ChangedRowNumbers : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  Work run(const Call& call, Communicator& group, const Forward& forward) override;

 private:
  // `numbers`: as they arrive, `rows[r]` from rank r. Returns whether that was a change.
  virtual bool change(bool weights, at::Tensor numbers, std::span<const std::int64_t> rows,
                      int rank) = 0;
  bool told_ = false;  // how many rows come: weights are next
};
class LocalRouter final : public ChangedRowNumbers {
 public:
  using ChangedRowNumbers::ChangedRowNumbers;

 private:
  bool change(bool weights, at::Tensor numbers, std::span<const std::int64_t> rows,
              int rank) override;
};
class WeightOrder final : public ChangedRowNumbers {
 public:
  using ChangedRowNumbers::ChangedRowNumbers;

 private:
  bool change(bool weights, at::Tensor numbers, std::span<const std::int64_t> rows,
              int rank) override;
};

}  // namespace quatrain
