// SPDX-License-Identifier: Apache-2.0
// Operations as calls and back.
#include "quatrain/comm/decorator.h"

#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"

namespace quatrain {

Decorator::Decorator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {
  CHECK(inner_ != nullptr, "a decorator around nothing");
  sent_.resize(static_cast<std::size_t>(size()));
  received_.resize(sent_.size());
}

Work Decorator::all_reduce(at::Tensor x, ReduceOp op) {
  return begin({.operation = Operation::kAllReduce, .out = std::move(x), .in = {}, .op = op});
}

Work Decorator::all_gather(at::Tensor out, const at::Tensor& in,
                           std::span<const std::int64_t> rows) {
  return begin({.operation = Operation::kAllGather, .out = std::move(out), .in = in, .rows = rows});
}

Work Decorator::reduce_scatter(at::Tensor out, const at::Tensor& in,
                               std::span<const std::int64_t> rows, ReduceOp op) {
  return begin({.operation = Operation::kReduceScatter,
                .out = std::move(out),
                .in = in,
                .rows = rows,
                .op = op});
}

Work Decorator::all_to_all(at::Tensor out, const at::Tensor& in,
                           std::span<const std::int64_t> out_rows,
                           std::span<const std::int64_t> in_rows) {
  return begin({.operation = Operation::kAllToAll,
                .out = std::move(out),
                .in = in,
                .rows = in_rows,
                .out_rows = out_rows});
}

Work Decorator::broadcast(at::Tensor x, int root) {
  return begin({.operation = Operation::kBroadcast, .out = std::move(x), .in = {}, .peer = root});
}

Work Decorator::send(const at::Tensor& x, int to) {
  return begin({.operation = Operation::kSend, .out = {}, .in = x, .peer = to});
}

Work Decorator::recv(at::Tensor x, int from) {
  return begin({.operation = Operation::kRecv, .out = std::move(x), .in = {}, .peer = from});
}

Work Decorator::barrier() { return begin({.operation = Operation::kBarrier, .out = {}, .in = {}}); }

std::unique_ptr<Communicator> Decorator::group(std::span<const int> ranks, std::string_view name) {
  return wrap(inner_->group(ranks, name));
}

Work Decorator::forward(const Call& call) {
  switch (call.operation) {
    case Operation::kAllReduce:
      return inner_->all_reduce(call.out, call.op);
    case Operation::kAllGather:
      return inner_->all_gather(call.out, call.in, call.rows);
    case Operation::kReduceScatter:
      return inner_->reduce_scatter(call.out, call.in, call.rows, call.op);
    case Operation::kAllToAll:
      return inner_->all_to_all(call.out, call.in, call.out_rows, call.rows);
    case Operation::kBroadcast:
      return inner_->broadcast(call.out, call.peer);
    case Operation::kSend:
      return inner_->send(call.in, call.peer);
    case Operation::kRecv:
      return inner_->recv(call.out, call.peer);
    case Operation::kBarrier:
      return inner_->barrier();
    case Operation::kGroup:
      break;
  }
  throw BugError("a group is made by group() alone");
}

std::string Decorator::where(const Call& call) const {
  return quatrain::where(*inner_, call.operation, call.sequence);
}

Work Decorator::begin(Call call) {
  call.sequence = next_sequence(call);
  return run(call);
}

std::int64_t Decorator::next_sequence(const Call& call) {
  const bool sends = call.operation == Operation::kSend;
  if (!sends && call.operation != Operation::kRecv) return ++collectives_;
  if (call.peer < 0 || call.peer >= size()) return 0;
  return ++(sends ? sent_ : received_)[static_cast<std::size_t>(call.peer)];
}

}  // namespace quatrain
