// SPDX-License-Identifier: Apache-2.0
// Faults of a pipeline's stages. Private to verify/.
#pragma once
#include <memory>
#include <vector>

#include "quatrain/verify/planted_fault.h"

namespace quatrain {

// Weight gradients of a stage that are added as often as one says.
class ChangedWeight : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void begin_step() override { sinks_.clear(); }
  void on_pass(int stage, Pass& pass) override;

 private:
  virtual int times(int microbatch) const = 0;
  std::vector<std::unique_ptr<GradSink>> sinks_;  // of this step
};
class MissingWeight final : public ChangedWeight {
 public:
  using ChangedWeight::ChangedWeight;

 private:
  int times(int microbatch) const override;
};
class WrongWeight final : public ChangedWeight {
 public:
  using ChangedWeight::ChangedWeight;

 private:
  int times(int microbatch) const override;
};

class StaleTied final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  Work run(const Call& call, Communicator& group, const Forward& forward) override;
};

class LossTwice final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void change(RankJobOptions& options) override;
  void on_pass(int stage, Pass& pass) override;

 private:
  int microbatches_ = 1;
};

}  // namespace quatrain
