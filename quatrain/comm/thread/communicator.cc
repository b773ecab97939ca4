// SPDX-License-Identifier: Apache-2.0
// Tensors with gaps are copied here, on the rank's own thread, so that its books of memory count
// the copies; everything else is read and written where it lies.
#include "quatrain/comm/thread/communicator.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <numeric>
#include <string>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/comm/sum.h"

namespace quatrain {
namespace {

using Rows = std::span<const std::int64_t>;

// The tensors of one member's call: the caller's, and the dense ones that peers see.
struct Tensors {
  at::Tensor in;     // dense
  at::Tensor out;    // dense: the caller's where that is
  at::Tensor wants;  // the caller's out where it has gaps
};

// `out` is the caller's tensor; with `keep` its numbers are read too.
Tensors dense_out(at::Tensor out, bool keep) {
  if (out.is_contiguous()) return {.in = {}, .out = std::move(out), .wants = {}};
  at::Tensor dense = keep ? out.contiguous() : at::empty(out.sizes(), out.options());
  return {.in = {}, .out = std::move(dense), .wants = std::move(out)};
}

class ThreadWork final : public Work::State, public ThreadWait {
 public:
  ThreadWork(std::shared_ptr<ThreadJob> job, ThreadGroup& group, int rank, Tensors tensors)
      : job_(std::move(job)), group_(group), rank_(rank), tensors_(std::move(tensors)) {}
  ThreadWork(const ThreadWork&) = delete;
  ThreadWork& operator=(const ThreadWork&) = delete;

  // Peers may be reading this rank's tensors, and nobody will wait for them any more.
  ~ThreadWork() override {
    if (!operation_ || operation_->done()) return;
    group_.withdraw(*operation_, member_);
    if (std::uncaught_exceptions() > 0 || job_->failed()) return;
    const std::string text = where() + " was dropped without wait()";
    job_->fail(std::make_exception_ptr(BugError(text)), text);
  }

  void join(ThreadGroup::Lane& lane, int member, ThreadCall call) {
    member_ = member;
    kind_ = call.operation;
    operation_ = group_.join(*job_, lane, member, std::move(call));
  }

  bool wait_until(Work::Deadline deadline) override {
    while (!operation_->done()) {
      if (job_->help(*operation_, member_)) continue;
      job_->throw_if_failed();
      if (std::chrono::steady_clock::now() >= deadline) return false;
      job_->await(group_.ranks()[static_cast<std::size_t>(rank_)], *operation_, *this, deadline);
    }
    if (tensors_.wants.defined()) tensors_.wants.copy_(tensors_.out);
    return true;
  }
  bool done() const override { return operation_->done(); }
  std::vector<int> absent() const override { return group_.missing(*operation_); }

  std::string text() const override {
    std::vector<int> ranks;
    for (int rank : absent()) ranks.push_back(group_.ranks()[static_cast<std::size_t>(rank)]);
    return ranks.empty() ? where() : where() + ": " + waits_for(ranks);
  }

 private:
  std::string where() const { return group_.where(kind_, operation_->sequence()); }

  std::shared_ptr<ThreadJob> job_;
  ThreadGroup& group_;
  int rank_;
  Tensors tensors_;
  int member_ = 0;
  Operation kind_ = Operation::kBarrier;
  std::shared_ptr<ThreadOperation> operation_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadJob> job, ThreadGroup& group, int rank)
      : job_(std::move(job)), group_(group), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_.size(); }
  std::string_view backend() const override { return "thread"; }
  std::string_view name() const override { return group_.name(); }
  std::span<const int> ranks() const override { return group_.ranks(); }

  Work all_reduce(at::Tensor x, ReduceOp op) override {
    check(Operation::kAllReduce, x);
    ThreadCall call = call_of(Operation::kAllReduce, x, x.sizes());
    call.op = op;
    return collective(std::move(call), dense_out(std::move(x), true));
  }
  Work all_gather(at::Tensor out, const at::Tensor& in, Rows rows) override {
    check_cut(Operation::kAllGather, out, in, rows);
    ThreadCall call = call_of(Operation::kAllGather, in, in.sizes().slice(1));
    call.rows.assign(rows.begin(), rows.end());
    return collective(std::move(call), dense(std::move(out), in));
  }
  Work reduce_scatter(at::Tensor out, const at::Tensor& in, Rows rows, ReduceOp op) override {
    check_cut(Operation::kReduceScatter, in, out, rows);
    ThreadCall call = call_of(Operation::kReduceScatter, in, in.sizes().slice(1));
    call.op = op;
    call.rows.assign(rows.begin(), rows.end());
    return collective(std::move(call), dense(std::move(out), in));
  }
  Work all_to_all(at::Tensor out, const at::Tensor& in, Rows out_rows, Rows in_rows) override {
    check_rows(Operation::kAllToAll, "out", out, out_rows);
    check_rows(Operation::kAllToAll, "in", in, in_rows);
    check_pair(Operation::kAllToAll, out, in);
    const auto mine = static_cast<std::size_t>(rank_);
    CHECK(in_rows[mine] == out_rows[mine], "{}: {} rows to itself, {} from itself",
          where(Operation::kAllToAll), in_rows[mine], out_rows[mine]);
    ThreadCall call = call_of(Operation::kAllToAll, in, in.sizes().slice(1));
    call.out_rows.assign(out_rows.begin(), out_rows.end());
    call.in_rows.assign(in_rows.begin(), in_rows.end());
    return collective(std::move(call), dense(std::move(out), in));
  }
  Work broadcast(at::Tensor x, int root) override {
    check(Operation::kBroadcast, x);
    check_peer(Operation::kBroadcast, root);
    ThreadCall call = call_of(Operation::kBroadcast, x, x.sizes());
    call.root = root;
    return collective(std::move(call), dense_out(std::move(x), root == rank_));
  }
  Work send(const at::Tensor& x, int to) override {
    check(Operation::kSend, x);
    check_peer(Operation::kSend, to);
    ThreadCall call = call_of(Operation::kSend, x, x.sizes());
    Tensors tensors{.in = x.contiguous(), .out = {}, .wants = {}};
    return start(group_.messages(rank_, to), 0, std::move(call), std::move(tensors));
  }
  Work recv(at::Tensor x, int from) override {
    check(Operation::kRecv, x);
    check_peer(Operation::kRecv, from);
    ThreadCall call = call_of(Operation::kRecv, x, x.sizes());
    return start(group_.messages(from, rank_), 1, std::move(call), dense_out(std::move(x), false));
  }
  Work barrier() override { return collective(ThreadCall{}, Tensors{}); }

  std::unique_ptr<Communicator> group(std::span<const int> ranks, std::string_view name) override {
    job_->throw_if_failed();
    int mine = -1;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      check_peer(Operation::kGroup, ranks[i]);
      if (ranks[i] == rank_) mine = static_cast<int>(i);
    }
    CHECK(mine >= 0, "{}: group \"{}\" of ranks {{{}}}, made by rank {}", where(Operation::kGroup),
          name, fmt::join(ranks, ", "), rank_);
    return std::make_unique<ThreadCommunicator>(job_, group_.make(*job_, rank_, ranks, name), mine);
  }

 private:
  static ThreadCall call_of(Operation operation, const at::Tensor& x, at::IntArrayRef sizes) {
    ThreadCall call;
    call.operation = operation;
    call.dtype = x.scalar_type();
    call.sizes.assign(sizes.begin(), sizes.end());
    return call;
  }

  static Tensors dense(at::Tensor out, const at::Tensor& in) {
    Tensors tensors = dense_out(std::move(out), false);
    tensors.in = in.contiguous();
    return tensors;
  }

  Work collective(ThreadCall call, Tensors tensors) {
    return start(group_.collectives(), rank_, std::move(call), std::move(tensors));
  }

  Work start(ThreadGroup::Lane& lane, int member, ThreadCall call, Tensors tensors) {
    job_->throw_if_failed();
    if (tensors.in.defined()) {
      call.in = static_cast<const std::byte*>(tensors.in.const_data_ptr());
    }
    if (tensors.out.defined()) call.out = static_cast<std::byte*>(tensors.out.mutable_data_ptr());
    auto work = std::make_unique<ThreadWork>(job_, group_, rank_, std::move(tensors));
    work->join(lane, member, std::move(call));
    return Work(std::move(work));
  }

  // Of the call that is about to be made; a message whose peer is wrong has no number yet.
  std::string where(Operation operation) const {
    const bool message = operation == Operation::kSend || operation == Operation::kRecv;
    const ThreadGroup::Lane& lane = group_.collectives();
    const std::int64_t next = lane.calls[static_cast<std::size_t>(rank_)] + 1;
    return group_.where(operation, message ? 0 : next);
  }
  void check(Operation operation, const at::Tensor& x) const {
    CHECK(x.defined() && x.device().is_cpu() && can_reduce(x.scalar_type()),
          "{}: {} is not what ranks exchange in memory", where(operation), describe(x));
  }
  void check_peer(Operation operation, int peer) const {
    CHECK(peer >= 0 && peer < size(), "{}: rank {} is not in a group of {}", where(operation), peer,
          size());
  }
  void check_rows(Operation operation, std::string_view side, const at::Tensor& x,
                  Rows rows) const {
    check(operation, x);
    CHECK(x.dim() > 0 && static_cast<int>(rows.size()) == size() && sum_of(rows) == x.size(0),
          "{}: {} rows {{{}}} for {} = {}", where(operation), side, fmt::join(rows, ", "), side,
          describe(x));
    for (std::int64_t each : rows) CHECK(each >= 0, "{}: {} rows", where(operation), each);
  }
  void check_pair(Operation operation, const at::Tensor& out, const at::Tensor& in) const {
    CHECK(out.scalar_type() == in.scalar_type() && out.dim() == in.dim() &&
              out.sizes().slice(1) == in.sizes().slice(1),
          "{}: out = {} but in = {}", where(operation), describe(out), describe(in));
  }
  // `whole` holds every rank's rows, `mine` this rank's.
  void check_cut(Operation operation, const at::Tensor& whole, const at::Tensor& mine,
                 Rows rows) const {
    const bool gathers = operation == Operation::kAllGather;
    check(operation, mine);
    check_rows(operation, gathers ? "out" : "in", whole, rows);
    CHECK(mine.dim() > 0 && mine.size(0) == rows[static_cast<std::size_t>(rank_)],
          "{}: {} = {} but rows {{{}}}", where(operation), gathers ? "in" : "out", describe(mine),
          fmt::join(rows, ", "));
    if (gathers) {
      check_pair(operation, whole, mine);
    } else {
      check_pair(operation, mine, whole);
    }
  }

  std::shared_ptr<ThreadJob> job_;
  ThreadGroup& group_;
  const int rank_;
};

}  // namespace

std::unique_ptr<Communicator> make_thread_communicator(std::shared_ptr<ThreadJob> job,
                                                       ThreadGroup& group, int rank) {
  return std::make_unique<ThreadCommunicator>(std::move(job), group, rank);
}

}  // namespace quatrain
