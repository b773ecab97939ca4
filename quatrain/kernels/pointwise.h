// SPDX-License-Identifier: Apache-2.0
// Element-wise and row-wise work in one pass each, in wide(dtype) inside. float32, bf16 and float64
// run the same template. Every element's bits depend on its own inputs only, never on its place:
// tails run the body's code.
// Shapes: N rows (batch x positions), D width, F feed-forward width, H heads, d head dim.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace quatrain::kernels {

// --- norms ------------------------------------------------------------------------------------
struct NormOut {
  at::Tensor y;     // like x
  at::Tensor rstd;  // [N], wide
  at::Tensor mean;  // [N], wide; undefined for RMSNorm
};
// LayerNorm when `bias` is defined or `centred`; RMSNorm otherwise. With `residual` defined, first
// x += residual in place (the residual stream and its norm in one pass). x: [..., D].
NormOut norm_forward(at::Tensor& x, const at::Tensor& residual, const at::Tensor& gain_D,
                     const at::Tensor& bias_D, double eps, bool centred);
// y again from x and what was kept: the bits of norm_forward's.
at::Tensor norm_apply(const at::Tensor& x, const at::Tensor& gain_D, const at::Tensor& bias_D,
                      const at::Tensor& mean_N, const at::Tensor& rstd_N);

struct NormGrads {
  at::Tensor dx;
  at::Tensor dgain_LD;  // wide; one row a leaf of `leaf` rows: sums of dy * xhat
  at::Tensor dbias_LD;  // wide; sums of dy; undefined without a bias
};
// dx = the norm's input gradient (+ residual_grad when defined). `leaf`: rows that are summed
// together (a sequence), in order; N % leaf == 0. `need_gain` false: dgain and dbias undefined.
NormGrads norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean_N,
                        const at::Tensor& rstd_N, const at::Tensor& gain_D, bool has_bias,
                        const at::Tensor& residual_grad, std::int64_t leaf, bool need_gain);

// --- MLP activations --------------------------------------------------------------------------
// up_gate: [N, 2F], gate first. Returns silu(gate) * up, [N, F].
at::Tensor swiglu(const at::Tensor& gate_up_N2F);
struct ActivationGrads {
  at::Tensor dx;   // like the pre-activation
  at::Tensor act;  // the activation again, for the weight half: the bits of the forward's
};
ActivationGrads swiglu_backward(const at::Tensor& dact_NF, const at::Tensor& gate_up_N2F);
at::Tensor gelu(const at::Tensor& x_NF, bool tanh_form);
ActivationGrads gelu_backward(const at::Tensor& dact_NF, const at::Tensor& x_NF, bool tanh_form);

// --- rotary embedding -------------------------------------------------------------------------
// cos and sin: [max_positions, d / 2], wide. positions: int64 [N]. x: [N, H, d], in place; the last
// dim has stride 1, rows may be wider than H d (a view into fused qkv). inverse: the transpose
// (backward).
enum class RopePairs : std::uint8_t {
  kHalves,     // element i turns with i + d / 2
  kNeighbours  // 2 i with 2 i + 1
};
void rope_(at::Tensor& x_NHd, const at::Tensor& cos, const at::Tensor& sin,
           const at::Tensor& positions_N, bool inverse, RopePairs pairs = RopePairs::kHalves);

// --- dropout ----------------------------------------------------------------------------------
// Which elements survive is a function of these alone: the same on every geometry and in
// recomputation. Element (row, column) draws number column_begin + column of the stream keyed by
// (seed, step, site, sample of the row, position of the row).
struct DropoutKey {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t site = 0;   // one number for each dropout of the model
  at::Tensor samples_N;    // int64: global sample id of each row
  at::Tensor positions_N;  // int64: global position of each row
  std::int64_t column_begin = 0;
};
// x = x * keep / (1 - p), in place; [N, D]. Its own backward.
void dropout_(at::Tensor& x_ND, double p, const DropoutKey& key);
// x = x * u, in place, u uniform in [1 - eps, 1 + eps); [N, D], wide. Its own backward.
void jitter_(at::Tensor& x_ND, double eps, const DropoutKey& key);

// --- embedding --------------------------------------------------------------------------------
// Which words a table or a row of logits is about: V of them, from `begin` on, out of `vocab`.
struct VocabShare {
  std::int64_t begin = 0;
  std::int64_t vocab = 0;
};
inline VocabShare whole_vocab(const at::Tensor& table_VD) { return {0, table_VD.size(0)}; }

// Rows of the table; zero for ids of other shares. Ids lie in [0, vocab).
at::Tensor embedding(const at::Tensor& table_VD, const at::Tensor& ids_N, const VocabShare& share);
// grad_VD (wide) += rows of dy at the share's ids, in the order of N for every row.
void embedding_add_grad(at::Tensor& grad_VD, const at::Tensor& ids_N, const at::Tensor& dy_ND,
                        const VocabShare& share);

// --- cross-entropy ----------------------------------------------------------------------------
struct CrossEntropySums {
  double loss = 0.0;       // sum over labelled rows of -log p(label) (nats)
  double z = 0.0;          // sum of lse^2
  double max_logit = 0.0;  // max |logit|
  std::int64_t tokens = 0;
};
// logits: [N, V]; labels: int64 [N], -100 = not trained. Overwrites logits with
// scale * d(loss + z_coef * z)/dlogits when `gradient`. Sums are in float64, in row order.
CrossEntropySums cross_entropy_(at::Tensor& logits_NV, const at::Tensor& labels_N, double scale,
                                double z_coef, bool gradient);

// The same where each of several ranks holds a share of the vocabulary, in two steps. First what a
// rank knows of its share, float64 [N, 3]: its largest logit, the sum of exponentials below that,
// and the label's logit (-infinity when it is another's). `max_logit`: of the share, labelled rows.
struct ShareStatistics {
  at::Tensor of_rows_N3;
  double max_logit = 0.0;
};
ShareStatistics cross_entropy_statistics(const at::Tensor& logits_NV, const at::Tensor& labels_N,
                                         const VocabShare& share);
// Then, from those of all S shares in the order of ranks, sums over the whole vocabulary (without
// max_logit) and this share's gradient in place of its logits. The same bits of the sums anywhere.
struct ShareLoss {
  double scale = 1.0;
  double z_coef = 0.0;
  bool gradient = true;
};
CrossEntropySums cross_entropy_share_(at::Tensor& logits_NV, const at::Tensor& labels_N,
                                      const VocabShare& share, const at::Tensor& statistics_SN3,
                                      const ShareLoss& loss);

// --- reductions and updates -------------------------------------------------------------------
// out_D (wide) += column sums of x [N, D], in row order.
void add_rows(at::Tensor& out_D, const at::Tensor& x_ND);
// Sum of squares in float64; the order of additions depends on numel only.
double sum_squares(const at::Tensor& x);

struct AdamWStep {
  double lr, beta1, beta2, eps, weight_decay;
  std::int64_t step;        // 1 for the first
  double grad_scale = 1.0;  // clipping
};
// One pass over flat, contiguous spans: master, m, v (wide) are updated; `value` (compute dtype;
// may share master's storage) receives the rounded master. Decoupled decay (Loshchilov & Hutter,
// arXiv:1711.05101), torch.optim.AdamW's order of operations.
void adamw_(at::Tensor& value, at::Tensor& master, const at::Tensor& grad, at::Tensor& m,
            at::Tensor& v, const AdamWStep& step);
struct SgdStep {
  double lr, momentum, weight_decay;
  bool nesterov;
  bool first;  // momentum buffer = gradient (torch.optim.SGD)
  double grad_scale = 1.0;
};
void sgd_(at::Tensor& value, at::Tensor& master, const at::Tensor& grad, at::Tensor& momentum,
          const SgdStep& step);

}  // namespace quatrain::kernels
