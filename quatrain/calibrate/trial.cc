// SPDX-License-Identifier: Apache-2.0
// See trial.h.
#include "quatrain/calibrate/trial.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>

#include "quatrain/base/median.h"
#include "quatrain/calibrate/step_trial.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/kernels/attention.h"
#include "quatrain/kernels/matmul.h"

namespace quatrain {
namespace {

constexpr std::int64_t kHeads = 8, kHeadDim = 64, kMiB = 1 << 20;

at::ScalarType scalar(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return at::kFloat;
    case Dtype::kBFloat16:
      return at::kBFloat16;
    case Dtype::kFloat64:
      return at::kDouble;
  }
  return at::kFloat;
}

std::string_view name_of(CommKind kind) {
  switch (kind) {
    case CommKind::kAllGather:
      return "all_gather";
    case CommKind::kReduceScatter:
      return "reduce_scatter";
    case CommKind::kAllReduce:
      return "all_reduce";
    case CommKind::kAllToAll:
      return "all_to_all";
    case CommKind::kSend:
      return "send";
  }
  return "?";
}

using Call = std::function<void()>;

struct Linear {
  at::Tensor x_MK, w_NK, y_MN, dx_MK, dw_NK;
  void multiply() {
    kernels::matmul_out(y_MN, kernels::n(x_MK), kernels::t(w_NK));
    kernels::matmul_out(dx_MK, kernels::n(y_MN), kernels::n(w_NK));
    kernels::matmul_add(dw_NK, kernels::t(y_MN), kernels::n(x_MK));
  }
};

// As in a step, no operand is left in a cache from the call before.
Call products(const Trial& trial) {
  constexpr std::int64_t kMoreThanCaches = 64 * kMiB;
  constexpr std::size_t kMostLayers = 64;  // small products are not worth the time to make more
  const auto type = at::TensorOptions().dtype(scalar(trial.dtype));
  const auto sums =
      at::TensorOptions().dtype(trial.dtype == Dtype::kFloat64 ? at::kDouble : at::kFloat);
  const std::int64_t bytes =
      size_of(trial.dtype) * (2 * trial.m * trial.k + 2 * trial.n * trial.k + trial.m * trial.n);
  const auto matrix = [](std::int64_t rows, std::int64_t columns, const at::TensorOptions& of) {
    return at::ones({rows, columns}, of).mul_(1e-3);
  };
  std::vector<Linear> layers;
  for (std::int64_t held = 0; held < kMoreThanCaches && layers.size() < kMostLayers;
       held += bytes) {
    layers.push_back({matrix(trial.m, trial.k, type), matrix(trial.n, trial.k, type),
                      matrix(trial.m, trial.n, type), matrix(trial.m, trial.k, type),
                      matrix(trial.n, trial.k, sums)});
  }
  return [layers, count = trial.count, next = std::size_t{0}]() mutable {
    for (std::int64_t i = 0; i < count; ++i) {
      layers[next].multiply();
      next = (next + 1) % layers.size();
    }
  };
}

Call attention(const Trial& trial) {
  const at::Tensor q = at::ones({1, trial.tokens, kHeads, kHeadDim}, at::kFloat);
  return [q, k = q.clone(), v = q.clone()] {
    kernels::attention(q, k, v, 1 / std::sqrt(static_cast<double>(kHeadDim)), {});
  };
}

// Half of the bytes are read, half written.
Call copy(const Trial& trial) {
  const at::Tensor from = at::ones({trial.bytes / 8}, at::kFloat);
  return [from, to = from.clone()] { to.copy_(from); };
}

Call send(const at::Tensor& message, Communicator& comm) {
  if (comm.rank() == 0) return [message, &comm] { comm.send(message, 1).wait(); };
  if (comm.rank() == 1) return [message, &comm] { comm.recv(message, 0).wait(); };
  return [] {};
}

// Zeros, so that sums stay what they are.
Call collective(const Trial& trial, Communicator& comm) {
  const std::int64_t ranks = comm.size();
  const std::int64_t piece = std::max<std::int64_t>(trial.bytes / (4 * ranks), 1);
  const at::Tensor whole = at::ones({piece * ranks}, at::kFloat).zero_();
  const at::Tensor part = at::ones({piece}, at::kFloat).zero_();
  switch (trial.collective) {
    case CommKind::kAllReduce:
      return [whole, &comm] { comm.all_reduce(whole, ReduceOp::kSum).wait(); };
    case CommKind::kAllGather:
      return [whole, part, &comm] { all_gather(comm, whole, part).wait(); };
    case CommKind::kReduceScatter:
      return [whole, part, &comm] { reduce_scatter(comm, part, whole, ReduceOp::kSum).wait(); };
    case CommKind::kAllToAll: {
      const std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks), piece);
      return [whole, out = whole.clone(), rows, &comm] {
        comm.all_to_all(out, whole, rows, rows).wait();
      };
    }
    case CommKind::kSend:
      return send(whole, comm);
  }
  return [] {};
}

Call call_of(const Trial& trial, Communicator& comm) {
  switch (trial.kind) {
    case TrialKind::kProduct:
      return products(trial);
    case TrialKind::kAttention:
      return attention(trial);
    case TrialKind::kCopy:
      return copy(trial);
    case TrialKind::kStep:
      return training_step();
    case TrialKind::kCollective:
      return collective(trial, comm);
  }
  return [] {};
}

double timed(const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double reduced(double value, Communicator& world, ReduceOp op) {
  const at::Tensor x = at::ones({1}, at::kDouble).fill_(value);
  world.all_reduce(x, op).wait();
  return x.item<double>();
}

// As many calls as `budget` holds, at least 9 and at most 1,000.
int calls_in(double budget, const Call& call, Communicator& world) {
  timed(call);  // warms up
  const double once = reduced(timed(call), world, ReduceOp::kMax);
  return static_cast<int>(std::clamp(budget / std::max(once, 1e-7), 9.0, 1000.0));
}

Measurement measured(const Call& call, Communicator& world, int calls, TrialKind kind) {
  const bool solo_as_well = kind == TrialKind::kStep && world.size() > 1 && world.rank() == 0;
  std::vector<double> own, gains;
  double slowest = 0, all = 0;
  for (int i = 0; i < calls; ++i) {
    world.barrier().wait();
    own.push_back(timed(call));
    all += own.back();
    slowest += reduced(own.back(), world, ReduceOp::kMax);
    if (solo_as_well) gains.push_back(1 - timed(call) / own.back());
  }
  const auto ranks = static_cast<double>(world.size());
  const double mean = reduced(all, world, ReduceOp::kSum) / ranks;
  const double middle = median(std::move(own));
  const double seconds = kind == TrialKind::kCollective
                             ? reduced(middle, world, ReduceOp::kMax)
                             : reduced(middle, world, ReduceOp::kSum) / ranks;
  return {seconds, (slowest - mean) / slowest, median(std::move(gains))};
}

}  // namespace

std::string name(const Trial& trial) {
  switch (trial.kind) {
    case TrialKind::kProduct:
      return fmt::format("products {}{}x{}x{} {}",
                         trial.count > 1 ? fmt::format("{} of ", trial.count) : "", trial.m,
                         trial.n, trial.k, quatrain::name(trial.dtype));
    case TrialKind::kAttention:
      return fmt::format("attention {} tokens", trial.tokens);
    case TrialKind::kCopy:
      return fmt::format("copy {}", trial.bytes);
    case TrialKind::kStep:
      return "training step";
    case TrialKind::kCollective:
      return fmt::format("{} {}", name_of(trial.collective), trial.bytes);
  }
  return "?";
}

double flops(const Trial& trial) {
  switch (trial.kind) {
    case TrialKind::kProduct:
      return 3 * 2.0 * static_cast<double>(trial.count * trial.m) * static_cast<double>(trial.n) *
             static_cast<double>(trial.k);
    case TrialKind::kAttention:  // two products over visible pairs
      return 4.0 * static_cast<double>(kHeads * kHeadDim) *
             static_cast<double>(kernels::visible_pairs(1, trial.tokens, trial.tokens, {}));
    case TrialKind::kCopy:
    case TrialKind::kStep:
    case TrialKind::kCollective:
      return 0;
  }
  return 0;
}

std::vector<Trial> default_trials(const Ranks& ranks) {
  std::vector<Trial> trials;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    for (const auto& [m, n, k] : {std::array{256, 256, 256},
                                  {512, 512, 512},
                                  {1024, 1024, 1024},
                                  {2048, 1024, 256},
                                  {2048, 256, 1024}}) {
      trials.push_back({.kind = TrialKind::kProduct, .dtype = dtype, .m = m, .n = n, .k = k});
    }
  }
  for (const int rows : {64, 256}) {
    trials.push_back({.m = rows, .n = 704, .k = 256, .count = 8});
  }
  for (const int tokens : {512, 1024, 2048}) {
    trials.push_back({.kind = TrialKind::kAttention, .tokens = tokens});
  }
  for (const std::int64_t bytes : {64 * kMiB, 256 * kMiB}) {
    trials.push_back({.kind = TrialKind::kCopy, .bytes = bytes});
  }
  trials.push_back({.kind = TrialKind::kStep});
  if (ranks.count < 2) return trials;
  for (const CommKind kind : {CommKind::kAllReduce, CommKind::kAllGather, CommKind::kReduceScatter,
                              CommKind::kAllToAll, CommKind::kSend}) {
    for (const std::int64_t bytes : {std::int64_t{1024}, kMiB, 16 * kMiB}) {
      trials.push_back({.kind = TrialKind::kCollective, .bytes = bytes, .collective = kind});
    }
  }
  return trials;
}

Measurement measure(const Trial& trial, const Ranks& ranks, double budget) {
  Measurement found;
  run_thread_ranks(ranks.count, {}, [&](std::unique_ptr<Communicator> world) {
    at::set_num_threads(ranks.threads);
    const c10::InferenceMode inference;
    const Call call = call_of(trial, *world);
    const int calls = calls_in(budget, call, *world);
    const Measurement own = measured(call, *world, calls, trial.kind);
    if (world->rank() == 0) found = own;
  });
  return found;
}

}  // namespace quatrain
