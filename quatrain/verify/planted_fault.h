// SPDX-License-Identifier: Apache-2.0
// The faults themselves, a class each. Private to verify/.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "quatrain/comm/decorator.h"
#include "quatrain/verify/run.h"

namespace quatrain {

struct FaultArguments {
  std::string name = {};  // of a parameter, unit or group
  std::string axis = {};
  double number = 0.0;                          // factor, count
  int stage = -1, microbatch = -1;              // of the pipeline
  Mesh mesh = {};                               // of the rank
  std::shared_ptr<std::atomic<bool>> met = {};  // set by any rank whose run is changed
};

// Sees every operation of every group, on its way.
class PlantedFault : public RankHooks {
 public:
  explicit PlantedFault(FaultArguments arguments) : arguments_(std::move(arguments)) {}
  using RankHooks::wrap;
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> world) override;
  void built(RankJob& job) override { job_ = &job; }

  using Forward = std::function<Work(const Call&)>;
  virtual Work run(const Call& call, Communicator& /*group*/, const Forward& forward) {
    return forward(call);
  }

 protected:
  const FaultArguments& arguments() const { return arguments_; }
  void met() { *arguments_.met = true; }
  bool has_job() const { return job_ != nullptr; }
  RankJob& job() { return *job_; }
  // This rank's flat views of the parameter's gradient: of the whole, while there is one, and of
  // its shard. They may be the same memory.
  std::vector<at::Tensor> grads();
  at::Tensor shard_grad();   // undefined where this rank owns nothing of it
  at::Tensor shard_value();  // likewise
  // Done when `work` is and, by who waits for it, `after`.
  static Work then(Work work, std::function<void()> after);

 private:
  at::Tensor of_shard(bool grad);
  FaultArguments arguments_;
  RankJob* job_ = nullptr;
};

class ScaledGradient final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void on_gradients() override;
};

// Works on the sums over ranks that write to the parameter's gradient.
class ChangedSum : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  Work run(const Call& call, Communicator& group, const Forward& forward) override;

 private:
  // `sum`: a view of what the operation has written of the gradient; `own`: what was there before.
  virtual void change(at::Tensor sum, const at::Tensor& own, int ranks) = 0;
};
class DroppedSum final : public ChangedSum {
 public:
  using ChangedSum::ChangedSum;

 private:
  void change(at::Tensor sum, const at::Tensor& own, int ranks) override;
};
class DoubledSum final : public ChangedSum {
 public:
  using ChangedSum::ChangedSum;

 private:
  void change(at::Tensor sum, const at::Tensor& own, int ranks) override;
};

class SwappedShards final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> world) override;
  using PlantedFault::wrap;
  void on_gradients() override;

 private:
  int partner();
  Communicator* world_ = nullptr;
};

// What a bias that every rank of a row-parallel layer adds comes to.
class RepeatedValue final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void begin_step() override;
  void on_gradients() override;

 private:
  at::Tensor kept_;
};

class StaleGather final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void built(RankJob& job) override;
  void begin_step() override { ++step_; }
  Work run(const Call& call, Communicator& group, const Forward& forward) override;

 private:
  int step_ = 0;
  at::Tensor first_;  // what the first gather brought
};

class MissingGather final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void begin_step() override { calls_ = 0; }
  Work run(const Call& call, Communicator& group, const Forward& forward) override;

 private:
  int calls_ = 0;  // of this step
};

class OwnNorm final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void begin_step() override { in_norm_ = false; }
  void on_gradients() override { in_norm_ = true; }
  Work run(const Call& call, Communicator& group, const Forward& forward) override;

 private:
  bool in_norm_ = false;  // from the gradients to the step's end
};

class OwnDivisor final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  Work run(const Call& call, Communicator& group, const Forward& forward) override;
};

class ShiftedPositions final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  using PlantedFault::wrap;
  std::unique_ptr<DataLoader> wrap(std::unique_ptr<DataLoader> data) override;
};

class SeedByRank final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void change(RankJobOptions& options) override;
};

// The axis of a name that parse_injection() has checked.
Axis axis_of(const Mesh& mesh, const std::string& name);

}  // namespace quatrain
