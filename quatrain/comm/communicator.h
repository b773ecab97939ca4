// SPDX-License-Identifier: Apache-2.0
// A fixed, ordered set of ranks that talk to each other, and an operation in flight.
// Backends: self/ (one rank, real semantics); thread/, mpi/ and nccl/ follow the same contract.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "quatrain/mesh/placement.h"

namespace quatrain {

// An operation in flight. Move-only; holds its tensors until it is done. After wait(), in and out
// are the caller's again (peers that read in place have finished). Destroying one that was never
// waited on is a bug and is reported as such, unless a rank is unwinding.
class [[nodiscard]] Work {
 public:
  struct State {
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual bool done() const = 0;
  };
  Work() = default;  // already done
  explicit Work(std::unique_ptr<State> state);
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work();
  void wait();
  bool done() const;

 private:
  std::unique_ptr<State> state_;
};

// Collective calls must be made by every rank of the group, in the same order. Not thread-safe:
// one communicator, one thread. Errors: BugError on a shape or dtype that differs from the
// contract; CommError when a peer is gone or the timeout passes, naming backend, operation, group
// and sequence number.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;  // "self", "thread", "mpi", "nccl"
  virtual std::string_view name() const = 0;     // "world", "dp", "control", ...

  virtual Work all_reduce(at::Tensor x, ReduceOp op) = 0;  // in place, any shape
  // [size * n, ...] <- [n, ...]
  virtual Work all_gather(at::Tensor out, const at::Tensor& in) = 0;
  // [n, ...] <- [size * n, ...]
  virtual Work reduce_scatter(at::Tensor out, const at::Tensor& in, ReduceOp op) = 0;
  virtual Work all_to_all(at::Tensor out, const at::Tensor& in,
                          std::span<const std::int64_t> out_rows,
                          std::span<const std::int64_t> in_rows) = 0;  // rows per peer, may be 0
  virtual Work broadcast(at::Tensor x, int root) = 0;
  virtual Work send(const at::Tensor& x, int to) = 0;
  virtual Work recv(at::Tensor x, int from) = 0;
  virtual void barrier() = 0;
  // Made at start, by every member, in one order. `ranks` are ranks of this communicator; the name
  // ("dp", "pp:2>3:F", "control", "checkpoint") shows in messages, counters and traces.
  virtual std::unique_ptr<Communicator> group(std::span<const int> ranks,
                                              std::string_view name) = 0;
};

}  // namespace quatrain
