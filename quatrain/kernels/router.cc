// SPDX-License-Identifier: Apache-2.0
// One row at a time, threads take ranges of rows. Nothing but logits and choices is kept between
// forward and backward: scores are made again.
#include "quatrain/kernels/router.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/parallel.h"

namespace quatrain::kernels {
namespace {

constexpr std::int64_t kGrain = 64;  // rows a thread takes at least
// Keeps sigmoid weights finite when all chosen scores vanish (DeepSeek's own constant).
constexpr double kLeastSum = 1e-20;

template <class F>
auto dispatch_wide(const at::Tensor& logits, const F& f) {
  CHECK(logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kDouble,
        "router logits are {}", c10::toString(logits.scalar_type()));
  CHECK(logits.dim() == 2 && logits.is_contiguous(), "router logits are a contiguous matrix");
  return logits.scalar_type() == at::kDouble ? f(TypeTag<double>{}) : f(TypeTag<float>{});
}

void check_rule(const RouterRule& rule, std::int64_t experts) {
  CHECK(rule.top_k >= 1 && rule.groups >= 1 && experts % rule.groups == 0 &&
            rule.top_k_groups >= 1 && rule.top_k_groups <= rule.groups &&
            rule.top_k <= experts / rule.groups * rule.top_k_groups,
        "a router chooses {} of {} experts, in {} of {} groups", rule.top_k, experts,
        rule.top_k_groups, rule.groups);
}

// Log-sum-exp of a row.
template <class T>
T log_sum_exp(const T* logits, std::int64_t count) {
  const T largest = *std::max_element(logits, logits + count);
  T sum = 0;
  for (std::int64_t e = 0; e < count; ++e) sum += std::exp(logits[e] - largest);
  return largest + std::log(sum);
}

template <class T>
void row_scores(ScoreKind kind, const T* logits, std::int64_t count, T* scores) {
  if (kind == ScoreKind::kSigmoid) {
    for (std::int64_t e = 0; e < count; ++e) scores[e] = T(1) / (T(1) + std::exp(-logits[e]));
    return;
  }
  const T largest = *std::max_element(logits, logits + count);
  T sum = 0;
  for (std::int64_t e = 0; e < count; ++e) sum += scores[e] = std::exp(logits[e] - largest);
  for (std::int64_t e = 0; e < count; ++e) scores[e] /= sum;
}

// The chosen experts' scores sum to this; weights are scaling / sum x score.
template <class T>
T chosen_sum(const RouterRule& rule, const T* scores, const std::int64_t* chosen) {
  T sum = rule.score == ScoreKind::kSigmoid ? T(kLeastSum) : T(0);
  for (std::int64_t j = 0; j < rule.top_k; ++j) sum += scores[chosen[j]];
  return sum;
}

// The `count` largest keys' indices, best first, ties by index.
template <class T>
void best_of(const T* keys, std::int64_t size, std::int64_t count, std::int64_t* out) {
  for (std::int64_t j = 0; j < count; ++j) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < size; ++e) {
      if (best >= 0 && !(keys[e] > keys[best])) continue;
      if (std::find(out, out + j, e) == out + j) best = e;
    }
    out[j] = best;
  }
}

template <class T>
class Chooser {
 public:
  Chooser(const RouterRule& rule, std::int64_t experts, const T* bias)
      : rule_(rule),
        experts_(experts),
        bias_(bias),
        keys_(static_cast<std::size_t>(experts)),
        groups_(static_cast<std::size_t>(rule.groups)),
        best_groups_(static_cast<std::size_t>(rule.top_k_groups)) {}

  void choose(const T* logits, std::int64_t* out) {
    keys(logits);
    if (rule_.top_k_groups < rule_.groups) keep_best_groups();
    best_of(keys_.data(), experts_, rule_.top_k, out);
  }

 private:
  void keys(const T* logits) {
    if (rule_.score == ScoreKind::kSoftmax && bias_ == nullptr) {
      std::copy(logits, logits + experts_, keys_.begin());
      return;
    }
    row_scores(rule_.score, logits, experts_, keys_.data());
    if (bias_ == nullptr) return;
    for (std::int64_t e = 0; e < experts_; ++e) keys_[static_cast<std::size_t>(e)] += bias_[e];
  }
  void keep_best_groups() {
    const std::int64_t size = experts_ / rule_.groups;
    for (std::int64_t g = 0; g < rule_.groups; ++g) {
      const T* group = keys_.data() + g * size;
      std::int64_t two[2];
      const std::int64_t count = std::min<std::int64_t>(size, 2);
      best_of(group, size, count, two);
      groups_[static_cast<std::size_t>(g)] = count == 2 ? group[two[0]] + group[two[1]] : group[0];
    }
    best_of(groups_.data(), rule_.groups, rule_.top_k_groups, best_groups_.data());
    for (std::int64_t g = 0; g < rule_.groups; ++g) {
      if (std::find(best_groups_.begin(), best_groups_.end(), g) != best_groups_.end()) continue;
      std::fill_n(keys_.begin() + g * size, size, -std::numeric_limits<T>::infinity());
    }
  }

  const RouterRule& rule_;
  std::int64_t experts_;
  const T* bias_;
  std::vector<T> keys_, groups_;
  std::vector<std::int64_t> best_groups_;
};

// Choices of each expert by sequence, [B, E]; of missing sequences none.
std::vector<std::int64_t> choices(const at::Tensor& experts_Nk, std::int64_t experts,
                                  const RouterSequences& sequences) {
  const std::int64_t batch = sequences.samples_B.numel();
  CHECK(experts_Nk.size(0) == batch * sequences.seq, "{} rows of {} sequences of {}",
        experts_Nk.size(0), batch, sequences.seq);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(batch * experts), 0);
  const at::Tensor samples = sequences.samples_B.contiguous();
  const auto* sample = data<std::int64_t>(samples);
  const auto* chosen = data<std::int64_t>(experts_Nk);
  const std::int64_t of_sequence = sequences.seq * experts_Nk.size(1);
  for (std::int64_t b = 0; b < batch; ++b) {
    if (sample[b] < 0) continue;
    for (std::int64_t i = b * of_sequence; i < (b + 1) * of_sequence; ++i) {
      if (chosen[i] >= 0) ++counts[static_cast<std::size_t>(b * experts + chosen[i])];
    }
  }
  return counts;
}

// E x each of the loads over their sum; even where there are none.
template <class T>
std::vector<T> fractions(const std::vector<double>& loads) {
  double sum = 0.0;
  for (const double load : loads) sum += load;
  const double factor = static_cast<double>(loads.size()) / sum;
  std::vector<T> f;
  f.reserve(loads.size());
  for (const double load : loads) f.push_back(sum > 0.0 ? T(factor * load) : T(1));
  return f;
}

std::vector<double> given_loads(const at::Tensor& loads_E, std::int64_t experts) {
  if (!loads_E.defined()) return std::vector<double>(static_cast<std::size_t>(experts), 0.0);
  CHECK(
      loads_E.numel() == experts && loads_E.scalar_type() == at::kDouble && loads_E.is_contiguous(),
      "loads of {} experts, of {}", loads_E.numel(), experts);
  const auto* loads = data<double>(loads_E);
  return {loads, loads + experts};
}

// Over sequences, of their choices [B, E].
std::vector<double> summed(const std::vector<std::int64_t>& counts, std::int64_t experts) {
  std::vector<double> loads(static_cast<std::size_t>(experts), 0.0);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    loads[i % loads.size()] += static_cast<double>(counts[i]);
  }
  return loads;
}

// f of every sequence, [B, E], of choices that these rows or all of the sequences' make.
template <class T>
std::vector<T> shares(const std::vector<std::int64_t>& here, std::int64_t experts,
                      std::int64_t top_k, const RouterSequences& sequences) {
  std::vector<std::int64_t> counts = here;
  if (sequences.counts_BE.defined()) {
    std::copy_n(data<std::int64_t>(sequences.counts_BE), counts.size(), counts.begin());
  }
  std::vector<T> f;
  f.reserve(counts.size());
  if (sequences.over == BalanceOver::kSequence) {
    const double factor =
        static_cast<double>(experts) / static_cast<double>(top_k * sequences.whole_rows());
    for (const std::int64_t count : counts) f.push_back(T(factor * static_cast<double>(count)));
    return f;
  }
  const bool measured = sequences.over == BalanceOver::kMicrobatch;
  const std::vector<T> all =
      fractions<T>(measured ? summed(counts, experts) : given_loads(sequences.loads_E, experts));
  while (f.size() < counts.size()) f.insert(f.end(), all.begin(), all.end());
  return f;
}

struct RowSums {
  double balance = 0.0, z = 0.0, entropy = 0.0;
};

template <class T>
RowSums row_sums(const RouterRule& rule, const T* logits, const T* f, std::vector<T>& scores) {
  const auto count = static_cast<std::int64_t>(scores.size());
  row_scores(rule.score, logits, count, scores.data());
  T total = 0;
  for (const T score : scores) total += score;
  RowSums sums;
  for (std::int64_t e = 0; e < count; ++e) {
    const T p = scores[static_cast<std::size_t>(e)] / total;
    sums.balance += static_cast<double>(f[e] * p);
    if (p > T(0)) sums.entropy -= static_cast<double>(p * std::log(p));
  }
  const auto lse = static_cast<double>(log_sum_exp(logits, count));
  sums.z = lse * lse;
  return sums;
}

// One row's gradients: of scores, then of logits.
template <class T>
class RowBackward {
 public:
  RowBackward(const RouterRule& rule, std::int64_t experts)
      : rule_(rule),
        scores_(static_cast<std::size_t>(experts)),
        dscores_(static_cast<std::size_t>(experts)) {}

  void run(const T* logits, const std::int64_t* chosen, const T* dweights, const T* f,
           const RouterLossScales& scales, T* dlogits) {
    const auto count = static_cast<std::int64_t>(scores_.size());
    row_scores(rule_.score, logits, count, scores_.data());
    std::fill(dscores_.begin(), dscores_.end(), T(0));
    through_weights(chosen, dweights);
    if (f != nullptr && scales.balance != 0.0) through_balance(f, T(scales.balance));
    through_scores(dlogits);
    if (f != nullptr && scales.z != 0.0) add_z(logits, T(2.0 * scales.z), dlogits);
  }

 private:
  T& dscore(std::int64_t e) { return dscores_[static_cast<std::size_t>(e)]; }
  T score(std::int64_t e) const { return scores_[static_cast<std::size_t>(e)]; }

  void through_weights(const std::int64_t* chosen, const T* dweights) {
    const T scaling = T(rule_.scaling);
    if (!rule_.normalise) {
      for (std::int64_t j = 0; j < rule_.top_k; ++j) dscore(chosen[j]) += scaling * dweights[j];
      return;
    }
    const T sum = chosen_sum(rule_, scores_.data(), chosen);
    T mean = 0;
    for (std::int64_t j = 0; j < rule_.top_k; ++j) mean += dweights[j] * score(chosen[j]);
    mean /= sum;
    for (std::int64_t j = 0; j < rule_.top_k; ++j) {
      dscore(chosen[j]) += scaling * (dweights[j] - mean) / sum;
    }
  }
  void through_balance(const T* f, T scale) {
    T total = 0, mean = 0;
    for (std::size_t e = 0; e < scores_.size(); ++e) {
      total += scores_[e];
      mean += f[e] * scores_[e];
    }
    mean = rule_.score == ScoreKind::kSigmoid ? mean / total : T(0);
    total = rule_.score == ScoreKind::kSigmoid ? total : T(1);  // softmax's is, but for rounding
    for (std::size_t e = 0; e < scores_.size(); ++e) dscores_[e] += scale * (f[e] - mean) / total;
  }
  void through_scores(T* dlogits) const {
    T mean = 0;
    if (rule_.score == ScoreKind::kSoftmax) {
      for (std::size_t e = 0; e < scores_.size(); ++e) mean += dscores_[e] * scores_[e];
    }
    for (std::size_t e = 0; e < scores_.size(); ++e) {
      const T slope = rule_.score == ScoreKind::kSigmoid ? T(1) - scores_[e] : T(1);
      dlogits[e] = scores_[e] * slope * (dscores_[e] - mean);
    }
  }
  void add_z(const T* logits, T scale, T* dlogits) const {
    const auto count = static_cast<std::int64_t>(scores_.size());
    const T lse = log_sum_exp(logits, count);
    for (std::int64_t e = 0; e < count; ++e) {
      dlogits[e] += scale * lse * std::exp(logits[e] - lse);
    }
  }

  const RouterRule& rule_;
  std::vector<T> scores_, dscores_;
};

}  // namespace

at::Tensor choose_experts(const at::Tensor& logits_NE, const at::Tensor& bias_E,
                          const RouterRule& rule) {
  const std::int64_t rows = logits_NE.size(0), experts = logits_NE.size(1);
  check_rule(rule, experts);
  CHECK(!bias_E.defined() || (bias_E.scalar_type() == logits_NE.scalar_type() &&
                              bias_E.numel() == experts && bias_E.is_contiguous()),
        "a selection bias is one wide number an expert");
  at::Tensor experts_Nk = at::empty({rows, rule.top_k}, logits_NE.options().dtype(at::kLong));
  dispatch_wide(logits_NE, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* logits = data<T>(logits_NE);
    const T* bias = bias_E.defined() ? data<T>(bias_E) : nullptr;
    auto* out = mutable_data<std::int64_t>(experts_Nk);
    parallel_ranges(rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
      Chooser<T> chooser(rule, experts, bias);
      for (std::int64_t n = begin; n < end; ++n) {
        chooser.choose(logits + n * experts, out + n * rule.top_k);
      }
    });
  });
  return experts_Nk;
}

at::Tensor expert_weights(const at::Tensor& logits_NE, const at::Tensor& experts_Nk,
                          const RouterRule& rule) {
  const std::int64_t rows = logits_NE.size(0), experts = logits_NE.size(1);
  at::Tensor weights_Nk = at::empty({rows, rule.top_k}, logits_NE.options());
  dispatch_wide(logits_NE, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* logits = data<T>(logits_NE);
    const auto* chosen = data<std::int64_t>(experts_Nk);
    T* out = mutable_data<T>(weights_Nk);
    parallel_ranges(rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::vector<T> scores(static_cast<std::size_t>(experts));
      for (std::int64_t n = begin; n < end; ++n) {
        const std::int64_t* of_row = chosen + n * rule.top_k;
        row_scores(rule.score, logits + n * experts, experts, scores.data());
        const T sum = rule.normalise ? chosen_sum(rule, scores.data(), of_row) : T(1);
        for (std::int64_t j = 0; j < rule.top_k; ++j) {
          out[n * rule.top_k + j] =
              scores[static_cast<std::size_t>(of_row[j])] / sum * T(rule.scaling);
        }
      }
    });
  });
  return weights_Nk;
}

at::Tensor choices_of_sequences(const at::Tensor& experts_Nk, std::int64_t experts,
                                const RouterSequences& sequences) {
  const std::vector<std::int64_t> counts = choices(experts_Nk, experts, sequences);
  at::Tensor counts_BE = at::empty({sequences.samples_B.numel(), experts}, at::kLong);
  std::copy(counts.begin(), counts.end(), mutable_data<std::int64_t>(counts_BE));
  return counts_BE;
}

RouterStatistics router_statistics(const at::Tensor& logits_NE, const at::Tensor& experts_Nk,
                                   const RouterRule& rule, const RouterSequences& sequences) {
  const std::int64_t rows = logits_NE.size(0), experts = logits_NE.size(1);
  const std::vector<std::int64_t> counts = choices(experts_Nk, experts, sequences);
  RouterStatistics result;
  result.loads_E = at::zeros({experts}, at::kDouble);
  const std::vector<double> loads = summed(counts, experts);
  std::copy(loads.begin(), loads.end(), mutable_data<double>(result.loads_E));
  std::vector<RowSums> of_rows(static_cast<std::size_t>(rows));
  dispatch_wide(logits_NE, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::vector<T> f = shares<T>(counts, experts, rule.top_k, sequences);
    const T* logits = data<T>(logits_NE);
    parallel_ranges(rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::vector<T> scores(static_cast<std::size_t>(experts));
      for (std::int64_t n = begin; n < end; ++n) {
        of_rows[static_cast<std::size_t>(n)] =
            row_sums(rule, logits + n * experts, f.data() + n / sequences.seq * experts, scores);
      }
    });
  });
  const at::Tensor samples = sequences.samples_B.contiguous();
  const auto* sample = data<std::int64_t>(samples);
  for (std::int64_t n = 0; n < rows; ++n) {
    if (sample[n / sequences.seq] < 0) continue;
    const RowSums& row = of_rows[static_cast<std::size_t>(n)];
    result.balance += row.balance;
    result.z += row.z;
    result.entropy += row.entropy;
    ++result.rows;
  }
  return result;
}

at::Tensor router_backward(const at::Tensor& dweights_Nk, const at::Tensor& logits_NE,
                           const at::Tensor& experts_Nk, const RouterRule& rule,
                           const RouterSequences& sequences, const RouterLossScales& scales) {
  const std::int64_t rows = logits_NE.size(0), experts = logits_NE.size(1);
  CHECK(dweights_Nk.scalar_type() == logits_NE.scalar_type() && dweights_Nk.is_contiguous() &&
            dweights_Nk.numel() == rows * rule.top_k,
        "gradients of {} weights for {} rows", dweights_Nk.numel(), rows);
  const std::vector<std::int64_t> counts = choices(experts_Nk, experts, sequences);
  const at::Tensor samples = sequences.samples_B.contiguous();
  at::Tensor dlogits_NE = at::empty(logits_NE.sizes(), logits_NE.options());
  dispatch_wide(logits_NE, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::vector<T> f = shares<T>(counts, experts, rule.top_k, sequences);
    const auto* sample = data<std::int64_t>(samples);
    const auto* chosen = data<std::int64_t>(experts_Nk);
    const T *logits = data<T>(logits_NE), *dweights = data<T>(dweights_Nk);
    T* out = mutable_data<T>(dlogits_NE);
    parallel_ranges(rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
      RowBackward<T> backward(rule, experts);
      for (std::int64_t n = begin; n < end; ++n) {
        const std::int64_t sequence = n / sequences.seq;
        backward.run(logits + n * experts, chosen + n * rule.top_k, dweights + n * rule.top_k,
                     sample[sequence] < 0 ? nullptr : f.data() + sequence * experts, scales,
                     out + n * experts);
      }
    });
  });
  return dlogits_NE;
}

}  // namespace quatrain::kernels
