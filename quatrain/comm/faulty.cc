// SPDX-License-Identifier: Apache-2.0
// Faults as changes of calls.
#include "quatrain/comm/faulty.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <thread>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"

namespace quatrain {
namespace {

// With nobody else whose failure could end it, a dropped call lasts as long as the wait.
struct Asleep final : Work::State {
  bool wait_until(Work::Deadline deadline) override {
    std::this_thread::sleep_until(deadline);
    return false;
  }
  bool done() const override { return false; }
};

// `x` with `rows` rows, of zeros.
at::Tensor with_rows(const at::Tensor& x, std::int64_t rows) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes[0] = rows;
  return at::zeros(sizes, x.options());
}

// One element less, or one where there is none.
at::Tensor one_less(const at::Tensor& x) {
  return at::zeros({x.numel() == 0 ? 1 : x.numel() - 1}, x.options());
}

class Faulty final : public Decorator {
 public:
  Faulty(std::unique_ptr<Communicator> inner, std::vector<FaultRule> rules)
      : Decorator(std::move(inner)), rules_(std::move(rules)) {
    const bool drops = std::any_of(rules_.begin(), rules_.end(),
                                   [](const FaultRule& r) { return r.fault == Fault::kDrop; });
    if (!drops || size() == 1) return;
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    dropped_ = this->inner().group(all, std::string(name()) + ".dropped");
  }

 private:
  Work run(const Call& call) override {
    const auto rule = std::find_if(rules_.begin(), rules_.end(),
                                   [&](const FaultRule& r) { return fits(r, call); });
    return rule == rules_.end() ? forward(call) : fail(call, *rule);
  }
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) override {
    return make_faulty(std::move(group), rules_);
  }

  bool fits(const FaultRule& rule, const Call& call) const {
    return rule.rank == world_rank(rank()) && (rule.group.empty() || rule.group == name()) &&
           rule.operation.value_or(call.operation) == call.operation &&
           rule.sequence == call.sequence;
  }

  Work fail(const Call& call, const FaultRule& rule) {
    switch (rule.fault) {
      case Fault::kDelay:
        std::this_thread::sleep_for(rule.delay);
        return forward(call);
      case Fault::kDrop:
        return drop();
      case Fault::kThrow:
        throw BugError(fmt::format("fault: rank {} throws at {}", rule.rank, where(call)));
      case Fault::kWrongShape:
        return call_with_wrong_shape(call);
      case Fault::kOtherOperation:
        return call_another_operation(call);
      case Fault::kDie:
        std::raise(SIGKILL);
    }
    return {};
  }

  // A message that nobody sends.
  Work drop() {
    if (!dropped_) return Work(std::make_unique<Asleep>());
    return dropped_->recv(at::zeros({1}), (rank() + 1) % size());
  }

  Work call_another_operation(const Call& call) {
    Call other{.operation = Operation::kBarrier, .out = {}, .in = {}};
    if (call.operation == Operation::kBarrier) {
      other.operation = Operation::kAllReduce;
      other.out = at::zeros({1});
    }
    return forward(other);
  }

  Work call_with_wrong_shape(Call call) {
    CHECK(call.operation != Operation::kBarrier, "{} has no shape", where(call));
    if (call.rows.empty()) {
      at::Tensor& x = call.out.defined() ? call.out : call.in;
      x = one_less(x);
      return forward(call);
    }
    return call_with_more_rows(call);
  }

  // One row more of this rank's.
  Work call_with_more_rows(Call call) {
    const auto self = static_cast<std::size_t>(rank());
    std::vector<std::int64_t> rows(call.rows.begin(), call.rows.end());
    std::vector<std::int64_t> out_rows(call.out_rows.begin(), call.out_rows.end());
    const bool to_all = call.operation == Operation::kAllToAll;
    // Why the neighbour: the rows that a rank keeps are nobody else's business.
    ++rows[to_all ? (self + 1) % rows.size() : self];
    call.in = with_rows(call.in, call.in.size(0) + 1);
    if (!to_all) call.out = with_rows(call.out, call.out.size(0) + 1);
    call.rows = rows;
    call.out_rows = out_rows;
    return forward(call);
  }

  std::vector<FaultRule> rules_;
  std::unique_ptr<Communicator> dropped_;
};

}  // namespace

std::unique_ptr<Communicator> make_faulty(std::unique_ptr<Communicator> inner,
                                          std::vector<FaultRule> rules) {
  return std::make_unique<Faulty>(std::move(inner), std::move(rules));
}

}  // namespace quatrain
