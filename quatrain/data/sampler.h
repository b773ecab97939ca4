// SPDX-License-Identifier: Apache-2.0
// Which sample stands where, as a pure function of (seed, slot): shuffled epochs by a permutation
// that needs no memory, mixtures by a rule that keeps every prefix within one sample of its
// weights. A slot is the place of a sample in the whole run: step * global_batch + place in the
// batch.
#pragma once
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace quatrain {

// A bijection of [0, size) drawn by `key`: a Feistel network over the next power of two, walked
// until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
class Permutation {
 public:
  Permutation(std::uint64_t seed, std::uint64_t key, std::int64_t size);
  std::int64_t operator()(std::int64_t index) const;

 private:
  static constexpr int kRounds = 8;
  std::uint64_t keys_[kRounds];
  std::uint64_t size_;
  unsigned left_bits_, right_bits_;
};

// Source of each slot. Of every prefix of n slots, source i gets weight_i * n to within one
// (Tijdeman, "The chairman assignment problem", Discrete Mathematics 32, 1980). Deterministic.
class Mixture {
 public:
  // Weights need not sum to one. Throws ConfigError unless all are finite, none negative, one
  // positive; a source of weight 0 is never drawn.
  explicit Mixture(std::vector<double> weights);

  // Samples of each source in slots [0, slot).
  std::vector<std::int64_t> counts(std::int64_t slot) const;
  // Sources of slots [begin, begin + out.size()), and in `counts` how many of each source came
  // before. Cost: the distance from the nearest earlier slot among the last calls, else from 0.
  void sources(std::int64_t begin, std::span<int> out, std::vector<std::int64_t>& counts) const;

 private:
  struct State {
    std::int64_t slot = 0;
    std::vector<std::int64_t> counts;
  };
  int next(State& state) const;
  State at(std::int64_t slot) const;

  std::vector<double> weights_;  // sum 1
  std::vector<int> drawn_;       // sources of positive weight
  mutable std::mutex mutex_;
  mutable std::vector<State> recent_;
};

// One sample of a batch; source -1: missing.
struct Sample {
  int source = -1;
  std::int64_t index = -1;  // of the source's samples
  friend bool operator==(const Sample&, const Sample&) = default;
};

// Samples of `tokens` tokens cut into pieces of seq_len labels; the last may be short.
std::int64_t num_samples(std::int64_t tokens, std::int64_t seq_len);

// What a rank reads of a batch: a contiguous ascending run, cut into micro-batches.
struct Deal {
  std::int64_t begin = 0, end = 0;  // of the batch's places
  std::int64_t microbatches = 0;    // the same on every rank
};
Deal deal(std::int64_t global_batch, std::int64_t microbatch_size, int dp_rank, int dp_size);

class Sampler {
 public:
  struct Source {
    std::int64_t samples = 0;
    double weight = 1.0;
  };
  struct Options {
    std::uint64_t seed = 0;
    std::int64_t global_batch = 1;
    bool shuffle = true;
    std::vector<std::int64_t> cursor = {};  // samples of each source consumed before first_step
    std::int64_t first_step = 1;
  };
  // Throws ConfigError for a drawn source without samples or a cursor that does not fit.
  Sampler(std::vector<Source> sources, Options options);

  // Samples at places [begin, end) of the batch of `step`.
  std::vector<Sample> samples(std::int64_t step, std::int64_t begin, std::int64_t end) const;
  std::vector<std::int64_t> cursor(std::int64_t step) const;

 private:
  std::int64_t slot(std::int64_t step) const;

  std::vector<Source> sources_;
  Options options_;
  Mixture mixture_;
  std::int64_t first_slot_ = 0;
  std::vector<std::int64_t> first_counts_;  // of the mixture at first_slot_
};

}  // namespace quatrain
