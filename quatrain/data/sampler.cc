// SPDX-License-Identifier: Apache-2.0
// The sampler. The mixture is indexed by slot, not by what was drawn: after a change of weights the
// new proportions hold from there on, each source goes on at its own position, and a second resume
// finds the same place.
#include "quatrain/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/base/rng.h"

namespace quatrain {
namespace {

constexpr std::size_t kRecent = 8;  // more than a loader reads ahead

// The finaliser of SplitMix64 (Steele et al., OOPSLA 2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

std::uint64_t low_bits(std::uint64_t x, unsigned bits) {
  return bits == 0 ? 0 : x & (~std::uint64_t{0} >> (64U - bits));
}

std::vector<double> weights_of(const std::vector<Sampler::Source>& sources) {
  std::vector<double> weights;
  for (const auto& source : sources) weights.push_back(source.weight);
  return weights;
}

}  // namespace

Permutation::Permutation(std::uint64_t seed, std::uint64_t key, std::int64_t size)
    : size_(static_cast<std::uint64_t>(size)) {
  CHECK(size > 0, "permutation of {}", size);
  const auto bits = static_cast<unsigned>(std::bit_width(size_ - 1));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  const RandomStream stream(seed, key);
  for (std::uint64_t round = 0; round < kRounds; ++round) keys_[round] = stream.bits(round);
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  CHECK(index >= 0 && static_cast<std::uint64_t>(index) < size_, "{} of {}", index, size_);
  auto value = static_cast<std::uint64_t>(index);
  if (size_ == 1) return 0;
  do {
    std::uint64_t left = value >> right_bits_;
    std::uint64_t right = low_bits(value, right_bits_);
    unsigned lb = left_bits_, rb = right_bits_;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t mixed = left ^ low_bits(mix(right ^ key), lb);
      left = std::exchange(right, mixed);
      std::swap(lb, rb);
    }
    value = (left << right_bits_) | right;
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

Mixture::Mixture(std::vector<double> weights) : weights_(std::move(weights)) {
  double sum = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (!std::isfinite(weights_[i]) || weights_[i] < 0) {
      throw ConfigError(
          fmt::format("data source {} has weight {}; weights are 0 or more", i, weights_[i]));
    }
    sum += weights_[i];
    if (weights_[i] > 0) drawn_.push_back(static_cast<int>(i));
  }
  if (drawn_.empty()) throw ConfigError("no data source has a weight above 0");
  for (double& weight : weights_) weight /= sum;
}

int Mixture::next(State& state) const {
  ++state.slot;
  int chosen = drawn_.front();
  if (drawn_.size() > 1) {
    const double slack = 1.0 / (2.0 * static_cast<double>(drawn_.size()) - 2.0);
    double earliest = std::numeric_limits<double>::infinity();
    double largest = -earliest;
    int behind = chosen;
    for (const int i : drawn_) {
      const auto at = static_cast<std::size_t>(i);
      const double deficit =
          weights_[at] * static_cast<double>(state.slot) - static_cast<double>(state.counts[at]);
      if (deficit > largest) {
        largest = deficit;
        behind = i;
      }
      const double deadline = (1.0 - slack - deficit) / weights_[at];
      if (deficit >= slack && deadline < earliest) {
        earliest = deadline;
        chosen = i;
      }
    }
    if (std::isinf(earliest)) chosen = behind;  // only by rounding
  }
  ++state.counts[static_cast<std::size_t>(chosen)];
  return chosen;
}

Mixture::State Mixture::at(std::int64_t slot) const {
  State state;
  {
    const std::lock_guard lock(mutex_);
    for (const State& known : recent_) {
      if (known.slot <= slot && known.slot >= state.slot) state = known;
    }
  }
  state.counts.resize(weights_.size());
  if (drawn_.size() == 1) {
    state.counts[static_cast<std::size_t>(drawn_.front())] = slot;
    state.slot = slot;
  }
  while (state.slot < slot) next(state);
  const std::lock_guard lock(mutex_);
  if (recent_.size() == kRecent) recent_.erase(recent_.begin());
  recent_.push_back(state);
  return state;
}

std::vector<std::int64_t> Mixture::counts(std::int64_t slot) const { return at(slot).counts; }

void Mixture::sources(std::int64_t begin, std::span<int> out,
                      std::vector<std::int64_t>& counts) const {
  State state = at(begin);
  counts = state.counts;
  for (int& source : out) source = next(state);
}

std::int64_t num_samples(std::int64_t tokens, std::int64_t seq_len) {
  CHECK(seq_len > 0, "seq_len {}", seq_len);
  return tokens < 2 ? 0 : (tokens - 2) / seq_len + 1;
}

Deal deal(std::int64_t global_batch, std::int64_t microbatch_size, int dp_rank, int dp_size) {
  CHECK(global_batch > 0 && microbatch_size > 0 && dp_size > 0, "batch {} of {} on {} ranks",
        global_batch, microbatch_size, dp_size);
  CHECK(dp_rank >= 0 && dp_rank < dp_size, "rank {} of {}", dp_rank, dp_size);
  const std::int64_t share = (global_batch + dp_size - 1) / dp_size;
  const std::int64_t begin = std::min(global_batch, share * dp_rank);
  return {begin, std::min(global_batch, begin + share),
          (share + microbatch_size - 1) / microbatch_size};
}

Sampler::Sampler(std::vector<Source> sources, Options options)
    : sources_(std::move(sources)), options_(std::move(options)), mixture_(weights_of(sources_)) {
  if (options_.cursor.size() > sources_.size()) {
    throw ConfigError(
        fmt::format("the checkpoint read {} data sources, the run names {}: keep "
                    "them, in order, and add new ones at the end (weight 0 stops one)",
                    options_.cursor.size(), sources_.size()));
  }
  options_.cursor.resize(sources_.size());
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (options_.cursor[i] < 0) {
      throw ConfigError(fmt::format("data source {} continues at {}", i, options_.cursor[i]));
    }
    if (sources_[i].weight > 0 && sources_[i].samples <= 0) {
      throw ConfigError(
          fmt::format("data source {} has fewer than two tokens: nothing to train on; "
                      "give it weight 0 or remove it",
                      i));
    }
  }
  first_slot_ = std::accumulate(options_.cursor.begin(), options_.cursor.end(), std::int64_t{0});
  first_counts_ = mixture_.counts(first_slot_);
}

std::int64_t Sampler::slot(std::int64_t step) const {
  CHECK(step >= options_.first_step, "step {} before the first, {}", step, options_.first_step);
  return first_slot_ + (step - options_.first_step) * options_.global_batch;
}

std::vector<Sample> Sampler::samples(std::int64_t step, std::int64_t begin,
                                     std::int64_t end) const {
  std::vector<int> drawn(static_cast<std::size_t>(end));
  std::vector<std::int64_t> counts;
  mixture_.sources(slot(step), drawn, counts);
  std::vector<Sample> out;
  for (std::int64_t place = 0; place < end; ++place) {
    const int source = drawn[static_cast<std::size_t>(place)];
    const auto at = static_cast<std::size_t>(source);
    const std::int64_t draw = options_.cursor[at] + counts[at]++ - first_counts_[at];
    if (place < begin) continue;
    const std::int64_t size = sources_[at].samples;
    const std::int64_t epoch = draw / size, index = draw % size;
    if (options_.shuffle) {
      const std::uint64_t key =
          mix((static_cast<std::uint64_t>(source) << 48U) ^ static_cast<std::uint64_t>(epoch));
      out.push_back({source, Permutation(options_.seed, key, size)(index)});
    } else {
      out.push_back({source, index});
    }
  }
  return out;
}

std::vector<std::int64_t> Sampler::cursor(std::int64_t step) const {
  std::vector<std::int64_t> counts = mixture_.counts(slot(step));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    counts[i] += options_.cursor[i] - first_counts_[i];
  }
  return counts;
}

}  // namespace quatrain
