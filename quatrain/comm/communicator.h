// SPDX-License-Identifier: Apache-2.0
// A fixed, ordered set of ranks that talk to each other, and an operation in flight.
// Backends: self/ (one rank, real semantics), thread/ (ranks as threads of one process), mpi/
// (ranks as processes). Decorators wrap any of them: counting, checked, watched, faulty.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "quatrain/mesh/placement.h"

namespace quatrain {

// An operation in flight. Move-only; holds its tensors until it is done, and progresses whether or
// not anybody waits. After wait(), in and out are the caller's again (peers that read in place have
// finished). Destroying one that was never waited on is a bug and is reported as such, unless a
// rank is unwinding.
class [[nodiscard]] Work {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  struct State {
    virtual ~State() = default;
    // Blocks until the operation is done (true) or the deadline has passed (false; it goes on, and
    // may be waited for again). Throws CommError when the job has failed.
    virtual bool wait_until(Deadline deadline) = 0;
    virtual bool done() const = 0;
    // Ranks of the group that this one still waits for; empty when done or when nobody knows.
    virtual std::vector<int> absent() const { return {}; }
  };
  static constexpr Deadline kNever = Deadline::max();

  Work() = default;  // already done
  explicit Work(std::unique_ptr<State> state);
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work();
  void wait();
  [[nodiscard]] bool wait_until(Deadline deadline);
  bool done() const;
  std::vector<int> absent() const;

 private:
  std::unique_ptr<State> state_;
};

// Collective calls must be made by every rank of the group, in the same order. Not thread-safe:
// one communicator, one thread. Tensors may be views with any strides, and may hold nothing; dtypes
// are float64, float32, bfloat16, int64, int32 and uint8. In place: all_gather's `in` may be this
// rank's own rows of `out`, reduce_scatter's `out` its own rows of `in` (the others then stay).
// Sums are taken in the order of ranks, in wide(dtype), and rounded once, so every backend gives
// the same bits. Errors: BugError on a shape or dtype that differs from the contract; CommError
// when a peer is gone, naming backend, operation, group and sequence number.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;    // "self", "thread", "mpi", "nccl"
  virtual std::string_view name() const = 0;       // "world", "dp", "control", ...
  virtual std::span<const int> ranks() const = 0;  // of the world, by rank of this group

  virtual Work all_reduce(at::Tensor x, ReduceOp op) = 0;  // in place, any shape
  // [sum of rows, ...] <- [rows[rank], ...]: each rank's rows, in the order of ranks; may be 0.
  virtual Work all_gather(at::Tensor out, const at::Tensor& in,
                          std::span<const std::int64_t> rows) = 0;
  // [rows[rank], ...] <- [sum of rows, ...]
  virtual Work reduce_scatter(at::Tensor out, const at::Tensor& in,
                              std::span<const std::int64_t> rows, ReduceOp op) = 0;
  virtual Work all_to_all(at::Tensor out, const at::Tensor& in,
                          std::span<const std::int64_t> out_rows,
                          std::span<const std::int64_t> in_rows) = 0;  // rows per peer, may be 0
  virtual Work broadcast(at::Tensor x, int root) = 0;
  // Messages from one rank to another arrive in the order they were sent. A send may wait for its
  // receive (no buffering is promised).
  virtual Work send(const at::Tensor& x, int to) = 0;
  virtual Work recv(at::Tensor x, int from) = 0;
  virtual Work barrier() = 0;
  // Made at start, by every member, in one order. `ranks` are ranks of this communicator; the name
  // ("dp", "pp:2>3:F", "control", "checkpoint") shows in messages, counters and traces.
  virtual std::unique_ptr<Communicator> group(std::span<const int> ranks,
                                              std::string_view name) = 0;
};

// The even cases: [size * n, ...] <- [n, ...] and [n, ...] <- [size * n, ...].
Work all_gather(Communicator& comm, at::Tensor out, const at::Tensor& in);
Work reduce_scatter(Communicator& comm, at::Tensor out, const at::Tensor& in, ReduceOp op);

}  // namespace quatrain
