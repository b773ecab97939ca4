// SPDX-License-Identifier: Apache-2.0
// Faults of shared sequences: each but the first stands around the attention of a place. Private to
// verify/.
#pragma once
#include <memory>
#include <vector>

#include "quatrain/nn/context_parallel.h"
#include "quatrain/verify/planted_fault.h"

namespace quatrain {

// Positions count from a rank's first token.
class LocalPositions final : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void on_pass(int stage, Pass& pass) override;
};

// Puts itself around every place's attention.
class ChangedAttention : public PlantedFault {
 public:
  using PlantedFault::PlantedFault;
  void change(RankJobOptions& options) override;

  virtual kernels::AttentionOut forward(const PlaceAttention& right, const QkvHeads& x,
                                        const ContextMask& mask) {
    return right.forward(x, mask);
  }
  virtual void backward(const PlaceAttention& right, const at::Tensor& dout, const QkvHeads& x,
                        const kernels::AttentionOut& forward, const ContextMask& mask,
                        QkvHeads& grads) {
    right.backward(dout, x, forward, mask, grads);
  }

 protected:
  const ContextSplit& split() const { return split_; }
  Communicator& context() { return *context_; }
  bool on_ring() const { return !split_.gathers && split_.places() > 1; }

 private:
  ContextSplit split_;
  Communicator* context_ = nullptr;
};

// On the ring: what goes home as a block's gradient is that of the block sent before, as out of a
// buffer that was not filled again.
class StaleBlock final : public ChangedAttention {
 public:
  using ChangedAttention::ChangedAttention;
  Work run(const Call& call, Communicator& group, const Forward& forward) override;
  void backward(const PlaceAttention& right, const at::Tensor& dout, const QkvHeads& x,
                const kernels::AttentionOut& forward, const ContextMask& mask,
                QkvHeads& grads) override;

 private:
  bool goes_home(const at::Tensor& sent) const;
  bool in_backward_ = false;
  std::vector<at::Tensor> keys_;  // of this backward: own and received ones, which travel on
  at::Tensor before_;             // gradients that went home last
};

// On the ring: the backward takes the log-sum-exp over a place's own keys for that over all.
class OwnLse final : public ChangedAttention {
 public:
  using ChangedAttention::ChangedAttention;
  kernels::AttentionOut forward(const PlaceAttention& right, const QkvHeads& x,
                                const ContextMask& mask) override;
};

// In the forward a query sees keys up to its own index, both counted on the rank that holds them.
class LocalMask final : public ChangedAttention {
 public:
  using ChangedAttention::ChangedAttention;
  kernels::AttentionOut forward(const PlaceAttention& right, const QkvHeads& x,
                                const ContextMask& mask) override;

 private:
  QkvHeads keys_of(int step, const QkvHeads& x, const ContextMask& mask);
};

}  // namespace quatrain
