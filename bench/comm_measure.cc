// SPDX-License-Identifier: Apache-2.0
#include "comm_measure.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

namespace quatrain {
namespace {

constexpr std::array kOperations = {BenchOperation::kAllReduce, BenchOperation::kAllGather,
                                    BenchOperation::kReduceScatter, BenchOperation::kAllToAll,
                                    BenchOperation::kSendRecv};

std::string_view name(BenchOperation operation) {
  switch (operation) {
    case BenchOperation::kAllReduce:
      return "all_reduce";
    case BenchOperation::kAllGather:
      return "all_gather";
    case BenchOperation::kReduceScatter:
      return "reduce_scatter";
    case BenchOperation::kAllToAll:
      return "all_to_all";
    case BenchOperation::kSendRecv:
      return "send/recv";
  }
  return "?";
}

// Zeros: sums of them stay what they are, however often.
at::Tensor floats(std::int64_t n) { return at::zeros({n}); }

Step prepare(Communicator& comm, BenchOperation operation, std::int64_t piece) {
  const int n = comm.size();
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(n), piece);
  const at::Tensor whole = floats(n * piece);
  switch (operation) {
    case BenchOperation::kAllReduce:
      return [&comm, whole] { comm.all_reduce(whole, ReduceOp::kSum).wait(); };
    case BenchOperation::kAllGather:
      return [&comm, whole, rows, in = floats(piece)] { comm.all_gather(whole, in, rows).wait(); };
    case BenchOperation::kReduceScatter:
      return [&comm, whole, rows, out = floats(piece)] {
        comm.reduce_scatter(out, whole, rows, ReduceOp::kSum).wait();
      };
    case BenchOperation::kAllToAll:
      return [&comm, whole, rows, out = floats(n * piece)] {
        comm.all_to_all(out, whole, rows, rows).wait();
      };
    case BenchOperation::kSendRecv:
      return [&comm, whole, out = floats(n * piece), next = (comm.rank() + 1) % n,
              previous = (comm.rank() + n - 1) % n] {
        Work received = comm.recv(out, previous);
        comm.send(whole, next).wait();
        received.wait();
      };
  }
  return {};
}

// Seconds of `calls` steps on the slowest rank.
double run(Communicator& world, const Step& step, std::int64_t calls) {
  world.barrier().wait();
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < calls; ++i) step();
  const std::chrono::duration<double> mine = std::chrono::steady_clock::now() - begin;
  const at::Tensor slowest = at::full({1}, mine.count(), at::TensorOptions().dtype(at::kDouble));
  world.all_reduce(slowest, ReduceOp::kMax).wait();
  return slowest.item<double>();
}

// Of one call: as many as fill the budget. All ranks decide alike, from the slowest one's time.
double seconds_a_call(Communicator& world, const Step& step, double budget_s) {
  constexpr std::int64_t kMost = 1 << 18;
  run(world, step, 1);  // pages touched, paths warm
  for (std::int64_t calls = 1;;) {
    const double seconds = run(world, step, calls);
    if (seconds > budget_s / 2 || calls == kMost) return seconds / static_cast<double>(calls);
    const double wanted = static_cast<double>(calls) * budget_s / std::max(seconds, 1e-7);
    calls = std::clamp(static_cast<std::int64_t>(wanted), 2 * calls, kMost);
  }
}

}  // namespace

Contender over_communicator(std::string name, Communicator& comm) {
  return {std::move(name), [&comm](BenchOperation operation, std::int64_t piece) {
            return prepare(comm, operation, piece);
          }};
}

nlohmann::json measure(Communicator& world, std::span<const Contender> contenders,
                       const BenchOptions& options) {
  nlohmann::json rows = nlohmann::json::array();
  const std::int64_t float_a_rank = 4 * world.size();
  for (BenchOperation operation : kOperations) {
    for (std::int64_t bytes = 4; bytes <= options.bytes; bytes *= 4) {
      const std::int64_t piece = std::max<std::int64_t>(1, bytes / float_a_rank);
      std::vector<Step> steps;
      for (const Contender& c : contenders) steps.push_back(c.prepare(operation, piece));
      std::vector<std::vector<double>> seconds(steps.size());
      for (int round = 0; round < options.rounds; ++round) {
        for (std::size_t i = 0; i < steps.size(); ++i) {
          seconds[i].push_back(seconds_a_call(world, steps[i], options.budget_s));
        }
      }
      for (std::size_t i = 0; i < steps.size(); ++i) {
        rows.push_back({{"operation", name(operation)},
                        {"bytes", bytes},
                        {"ranks", world.size()},
                        {"contender", contenders[i].name},
                        {"seconds", seconds[i]}});
      }
    }
  }
  return rows;
}

void add_options(CLI::App& app, BenchOptions& options) {
  app.add_option("--rounds", options.rounds, "of all contenders, in turn");
  app.add_option("--budget", options.budget_s, "seconds of one measurement");
  app.add_option("--bytes", options.bytes, "the largest buffer");
}

}  // namespace quatrain
