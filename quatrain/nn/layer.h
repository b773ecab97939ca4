// SPDX-License-Identifier: Apache-2.0
// One differentiable block with its backward written out and split in two (Qi et al., "Zero Bubble
// Pipeline Parallelism", arXiv:2401.10241): the seam on which zero-bubble schedules, ZeRO-3 and
// exact memory accounting hang.
// Shapes: B sequences, T positions, N = B T rows, R of them this rank's, D hidden, I in, O out.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "quatrain/nn/param.h"

namespace quatrain {

// Where weight gradients go. Layers say what a gradient is made of, never how it is summed: fast
// mode adds one GEMM into the gradient, ZeRO may keep it unreduced, exact mode cuts at sequences.
// Rows are batch-major: rows [b T, (b + 1) T) belong to the b-th sequence of the pass.
// A range of neighbouring parameters (q, k, v) may be handed over as one; an absent one (no bias)
// has no unit.
struct ParamRange {
  ParamUnit* unit = nullptr;
  Param* first = nullptr;
  Param* last = nullptr;  // inclusive
  bool present() const { return unit != nullptr; }
  at::Tensor value() const { return unit->fused_value(*first, *last); }
  bool any_trainable() const;  // false when absent
};
class GradSink {
 public:
  virtual ~GradSink() = default;
  virtual void outer(const ParamRange& p, const at::Tensor& dy_NO, const at::Tensor& x_NI) = 0;
  virtual void rows(const ParamRange& p, const at::Tensor& g_ND) = 0;  // += column sums
  virtual void indexed(const ParamRange& p, const at::Tensor& ids_N, const at::Tensor& dy_ND) = 0;
};

// Adds straight into Param::grad, in place, in wide(dtype). Skips parameters that are not
// trainable.
class AccumulatingSink final : public GradSink {
 public:
  void outer(const ParamRange& p, const at::Tensor& dy_NO, const at::Tensor& x_NI) override;
  void rows(const ParamRange& p, const at::Tensor& g_ND) override;
  void indexed(const ParamRange& p, const at::Tensor& ids_N, const at::Tensor& dy_ND) override;
};

// What routers saw, over layers with experts and the rows of sequences that are there.
struct RouterSums {
  double balance = 0.0;  // the load-balance loss times its coefficient, once a row
  double z = 0.0;        // squared log-sum-exps of the logits
  double entropy = 0.0;  // of the scores (nats)
  std::int64_t rows = 0;
  std::int64_t dropped = 0;  // choices that found no room
  at::Tensor loads_LE{};     // float64: choices of each layer's experts; undefined without any
};

// What the layers saw of one or more micro-batches, unscaled.
struct LossSums {
  double loss = 0.0;       // sum over trained tokens of -log p(label) (nats), without z-loss
  double z = 0.0;          // sum of squared log-sum-exps
  double max_logit = 0.0;  // max |logit|
  std::int64_t tokens = 0;
  // Largest log-sum-exp of a row of attention scores: at least the largest score of a query, and at
  // most the logarithm of the sequence length above it.
  double max_attention_lse = 0.0;
  RouterSums router{};
};

enum class Mode : std::uint8_t { kTrain, kEval, kDecode };
class KvCache;  // nn/kv_cache.h

// All that a micro-batch carries beside activations. Every stage builds it from the sampler by
// itself: a pure function of (seed, step, micro-batch), so no metadata crosses the pipeline.
struct Pass {
  std::int64_t step = 0;
  int microbatch = 0;
  at::Tensor tokens_BT;  // int64; the embedding's weight half reads them again
  // Under context parallelism T are this rank's tokens of sequences of S.
  at::Tensor positions_BT;  // int64, of global tokens: right under cp, zigzag and packing
  at::Tensor documents_BS;  // int64 document ids of packed samples, whole; or undefined
  std::int64_t seq = 0;     // S; 0: T
  std::int64_t whole_seq() const { return seq > 0 ? seq : positions_BT.size(1); }
  at::Tensor sample_ids_B;  // int64, global: keys of dropout
  at::Tensor labels_BT;     // int64, -100 = not trained; last stage only
  double loss_scale =
      1.0;              // 1 / trained tokens of the global batch, known before the first forward
  double z_loss = 0.0;  // coefficient of the mean squared log-sum-exp
  double router_z_loss = 0.0;  // of routers' logits, every layer's
  at::Tensor router_loads_LE;  // float64: RouterSums of the step before; undefined in the first
  Mode mode = Mode::kTrain;
  std::uint64_t seed = 0;       // of dropout
  GradSink* grads = nullptr;    // null but in training; the head's forward uses it too
  bool rerun = false;           // for the stash alone: nobody reads what the layer returns
  bool fused_backward = false;  // each layer's weight half follows its input half at once
  KvCache* cache = nullptr;     // kDecode only
  LossSums* sums = nullptr;     // layers' forwards add (+=) when given
};

// How long a saved tensor lives: until the input half or the weight half of the backward.
enum class Until : std::uint8_t { kInput, kWeight };
struct Saved {
  at::Tensor tensor;
  Until until;
  std::string_view what;  // its row in cost/'s table; a literal
};

// What one layer keeps of one micro-batch. Owned by the executor, so peak memory is a property of
// the schedule. A storage that is saved twice counts once.
class Stash {
 public:
  Stash() = default;
  // Keeps nothing: for a forward that will run again.
  static Stash discarding();
  // Keeps `tensor` and books its block as activations.
  void save(at::Tensor tensor, Until until, std::string_view what);
  const at::Tensor& at(std::string_view what) const;  // BugError when absent
  bool has(std::string_view what) const;
  at::Tensor take(std::string_view what);  // removes it
  void drop_input_half();                  // all that lived until the input half
  void clear();
  bool empty() const;               // children included
  Stash& child(std::size_t index);  // of a block's parts, made when first asked
  const std::vector<Saved>& saved() const { return saved_; }
  const std::vector<Stash>& children() const { return children_; }
  // Bytes of distinct storages, children included; with `until`, only those saved so (a storage
  // that both halves hold counts for the weight half).
  std::int64_t bytes() const;
  std::int64_t bytes(Until until) const;

 private:
  bool discards_ = false;
  std::vector<Saved> saved_;
  std::vector<Stash> children_;
};

// Weight halves that may run while a collective of the input half is in flight: this micro-batch's
// own (fused backward) or earlier ones' (zero bubble). The plan fixes how many run where, never the
// clock, so the order of collectives is the same on all ranks.
class Filler {
 public:
  // Runs the next piece of the layer's own weight half that what is stashed allows by now; false
  // when there is none.
  using OwnPiece = std::function<bool()>;
  virtual ~Filler() = default;
  // Called once for each collective of an input half, after it was started.
  virtual void fill(const OwnPiece& own) = 0;
};
class NoFiller final : public Filler {
 public:
  void fill(const OwnPiece&) override {}
};

class Layer {
 public:
  virtual ~Layer() = default;
  // x_RD -> y_RD: rows of the residual stream, this rank's (nn/tensor_parallel.h). The first layer
  // takes int64 tokens [B, T]; the last returns the scaled loss (z-loss included; float64, 0-dim;
  // in kDecode the logits of the last position, [B, V]). A rerun may leave out what only makes its
  // result, and return nothing.
  virtual at::Tensor forward(const at::Tensor& x, const Pass& pass, Stash& stash) = 0;
  // dy_RD -> dx_RD (undefined for the first layer). Drops what was saved until the input half,
  // may save more for the weight half. The last layer's dy is undefined.
  virtual at::Tensor backward_input(const at::Tensor& dy, const Pass& pass, Stash& stash,
                                    Filler& filler) = 0;
  // Hands every weight gradient to pass.grads (+=), then empties the stash. Needs no gathered
  // weights.
  virtual void backward_weight(const Pass& pass, Stash& stash) = 0;
  virtual std::vector<ParamUnit*> units() = 0;
};

}  // namespace quatrain
