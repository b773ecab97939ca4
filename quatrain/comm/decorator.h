// SPDX-License-Identifier: Apache-2.0
// What all decorators share: every operation becomes one value, a Call, so that a decorator is one
// function on calls and one on groups and holds nothing but its own idea. Decorators nest; each
// wraps the groups that it makes as it is wrapped itself.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/comm/describe.h"

namespace quatrain {

// The arguments of one operation. Rows are lent for the time of the call.
struct Call {
  Operation operation;
  at::Tensor out;  // what is written; all_reduce, broadcast and recv have no other
  at::Tensor in;   // what is read; send has no other
  std::span<const std::int64_t> rows{};      // all_gather, reduce_scatter; of `in` in all_to_all
  std::span<const std::int64_t> out_rows{};  // all_to_all
  ReduceOp op = ReduceOp::kSum;              // all_reduce, reduce_scatter
  int peer = -1;                             // broadcast: root; send: to; recv: from
  // As in messages: of this communicator's collectives, or of the messages to or from `peer`, from
  // 1; 0 where the peer is no rank of the group.
  std::int64_t sequence = 0;

  // The tensor whose shape tells the call: `in` where there is one, else `out`.
  const at::Tensor& tensor() const { return in.defined() ? in : out; }
};

class Decorator : public Communicator {
 public:
  int rank() const final { return inner_->rank(); }
  int size() const final { return inner_->size(); }
  std::string_view backend() const final { return inner_->backend(); }
  std::string_view name() const final { return inner_->name(); }
  std::span<const int> ranks() const final { return inner_->ranks(); }

  Work all_reduce(at::Tensor x, ReduceOp op) final;
  Work all_gather(at::Tensor out, const at::Tensor& in, std::span<const std::int64_t> rows) final;
  Work reduce_scatter(at::Tensor out, const at::Tensor& in, std::span<const std::int64_t> rows,
                      ReduceOp op) final;
  Work all_to_all(at::Tensor out, const at::Tensor& in, std::span<const std::int64_t> out_rows,
                  std::span<const std::int64_t> in_rows) final;
  Work broadcast(at::Tensor x, int root) final;
  Work send(const at::Tensor& x, int to) final;
  Work recv(at::Tensor x, int from) final;
  Work barrier() final;
  std::unique_ptr<Communicator> group(std::span<const int> ranks, std::string_view name) final;

 protected:
  explicit Decorator(std::unique_ptr<Communicator> inner);

  // The idea of the decorator: what happens to a call, usually around forward().
  virtual Work run(const Call& call) = 0;
  // The same decorator around a group that the wrapped communicator has made.
  virtual std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) = 0;

  Work forward(const Call& call);
  Communicator& inner() { return *inner_; }
  int world_rank(int rank) const { return ranks()[static_cast<std::size_t>(rank)]; }
  std::string where(const Call& call) const;  // "thread all_gather #3 on dp_shard {0, 2}"

 private:
  Work begin(Call call);
  std::int64_t next_sequence(const Call& call);

  std::unique_ptr<Communicator> inner_;
  std::int64_t collectives_ = 0;
  std::vector<std::int64_t> sent_;  // to each rank
  std::vector<std::int64_t> received_;
};

}  // namespace quatrain
