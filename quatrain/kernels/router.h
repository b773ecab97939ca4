// SPDX-License-Identifier: Apache-2.0
// Which experts a row visits and with what weights, from its router logits, with the backward
// written out. Softmax top-k: Switch (arXiv:2101.03961), Mixtral (arXiv:2401.04088); sigmoid with a
// selection bias and groups: DeepSeek-V3 (arXiv:2412.19437, section 2.1.2); z-loss: ST-MoE
// (arXiv:2202.08906, equation 5). All in the wide type that the logits have.
// Shapes: N rows = B sequences of T, E experts, k chosen ones.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace quatrain::kernels {

enum class ScoreKind : std::uint8_t { kSoftmax, kSigmoid };

struct RouterRule {
  ScoreKind score = ScoreKind::kSoftmax;
  std::int64_t top_k = 1;
  bool normalise = true;  // the chosen experts' weights sum to `scaling`
  double scaling = 1.0;
  std::int64_t groups = 1;        // neighbouring experts; a group's score is its best two's sum
  std::int64_t top_k_groups = 1;  // only experts of the best groups are chosen
};

// int64 [N, k], best first. Softmax chooses by logit (the order of its scores, where rounding made
// none equal), sigmoid by score + bias. Among equals the lowest index wins. `bias_E`: wide, or
// undefined; it decides the choice and nothing else.
at::Tensor choose_experts(const at::Tensor& logits_NE, const at::Tensor& bias_E,
                          const RouterRule& rule);

// Of the chosen experts' outputs, [N, k].
at::Tensor expert_weights(const at::Tensor& logits_NE, const at::Tensor& experts_Nk,
                          const RouterRule& rule);

// Room for rows at the experts: of a micro-batch's N rows each takes at most
// ceil(factor x N k / E) choices (GShard, arXiv:2006.16668, section 3.2), whatever ranks share the
// experts. kPosition: the first come, in the order of rows, then of choices; kProbability: those
// with the largest weights, the first among equals.
enum class DropBy : std::uint8_t { kPosition, kProbability };
struct ExpertCapacity {
  double factor = 0.0;  // 0: no limit
  DropBy by = DropBy::kPosition;
  bool limited() const { return factor > 0.0; }
  std::int64_t rows(std::int64_t rows, std::int64_t top_k, std::int64_t experts) const;
};
// The choices, those that find no room as ~expert.
at::Tensor limit_experts(const at::Tensor& experts_Nk, const at::Tensor& weights_Nk,
                         std::int64_t experts, const ExpertCapacity& capacity);

// Whose choices the load-balance loss counts: those of each row's own sequence, of all rows here,
// or of a global batch whose loads are given.
enum class BalanceOver : std::uint8_t { kSequence, kMicrobatch, kGlobalBatch };

// What the balance of the router is measured on: rows of sequences that are really there.
struct RouterSequences {
  std::int64_t seq = 0;  // rows of each
  at::Tensor samples_B;  // int64; negative: the sequence is missing and counts in nothing
  BalanceOver over = BalanceOver::kSequence;
  at::Tensor loads_E{};  // float64, of kGlobalBatch; undefined or all zero: an even load
  // Where these rows are a part of each sequence: the rows of the whole, and the choices of all.
  std::int64_t whole = 0;  // 0: seq
  at::Tensor counts_BE{};  // int64
  std::int64_t whole_rows() const { return whole > 0 ? whole : seq; }
};

// Choices of each expert by sequence, int64 [B, E]; of missing sequences none.
at::Tensor choices_of_sequences(const at::Tensor& experts_Nk, std::int64_t experts,
                                const RouterSequences& sequences);

// Sums over rows, float64, in row order. Each row counts the load-balance loss once,
//   sum_e f_e P_e,  f_e = E x choices of e / all choices,  P_e = mean of the normalised scores
// (DeepSeek-V3, equations 17 to 20, by sequence; Switch, equations 4 to 6, by micro-batch). By
// sequence or global batch it does not depend on how sequences are dealt to ranks and
// micro-batches.
struct RouterStatistics {
  double balance = 0.0;
  double z = 0.0;        // sum of squared log-sum-exps of the logits
  double entropy = 0.0;  // of the normalised scores (nats)
  std::int64_t rows = 0;
  at::Tensor loads_E;  // float64: choices of each expert
};
RouterStatistics router_statistics(const at::Tensor& logits_NE, const at::Tensor& experts_Nk,
                                   const RouterRule& rule, const RouterSequences& sequences);

// Factors of the sums `balance` and `z` in the loss.
struct RouterLossScales {
  double balance = 0.0;
  double z = 0.0;
};
// dlogits: through the chosen experts' weights, and of both losses. [N, E].
at::Tensor router_backward(const at::Tensor& dweights_Nk, const at::Tensor& logits_NE,
                           const at::Tensor& experts_Nk, const RouterRule& rule,
                           const RouterSequences& sequences, const RouterLossScales& scales);

}  // namespace quatrain::kernels
