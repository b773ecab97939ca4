// SPDX-License-Identifier: Apache-2.0
// Headers beside operations: all_gathered by collectives, sent ahead by messages.
#include "quatrain/comm/checked.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/comm/call_header.h"
#include "quatrain/comm/decorator.h"

namespace quatrain {
namespace {

std::span<const std::int64_t> numbers(const at::Tensor& x) {
  return {x.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(x.numel())};
}

at::Tensor make_numbers(std::int64_t n) {
  return at::empty({n}, at::TensorOptions().dtype(at::kLong));
}

at::Tensor to_tensor(std::span<const std::int64_t> values) {
  at::Tensor x = make_numbers(static_cast<std::int64_t>(values.size()));
  std::copy(values.begin(), values.end(), x.mutable_data_ptr<std::int64_t>());
  return x;
}

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{10};  // at the headers, while the operation is waited for

// What is compared when the headers have come; gives what is wrong, or nothing.
using Compare = std::function<std::optional<std::string>()>;

class CheckedState final : public Work::State {
 public:
  CheckedState(Work headers, Work work, std::string where, Compare compare)
      : headers_(std::move(headers)),
        work_(std::move(work)),
        where_(std::move(where)),
        compare_(std::move(compare)) {}

  // Why not simply for the headers first: an error of the wait then names the operation, and not
  // an all_gather that nobody has written.
  bool wait_until(Work::Deadline deadline) override {
    while (!headers_.done()) {
      const Work::Deadline look = std::min(deadline, Clock::now() + kLook);
      if (!wait_for_work(look) && look < deadline) continue;
      if (!headers_.wait_until(deadline)) return false;
    }
    compare();
    return work_.wait_until(deadline);
  }
  bool done() const override { return headers_.done() && work_.done(); }
  std::vector<int> absent() const override {
    return headers_.done() ? work_.absent() : headers_.absent();
  }

 private:
  // What the backend finds wrong is told by the headers, where they have come, in both ranks'
  // words.
  bool wait_for_work(Work::Deadline deadline) {
    try {
      return work_.wait_until(deadline);
    } catch (const CommError&) {
      if (headers_.done()) compare();
      throw;
    }
  }

  void compare() {
    headers_.wait();  // done
    if (!compare_) return;
    if (const auto wrong = compare_()) throw CommError(where_ + ": " + *wrong);
    compare_ = nullptr;
  }

  Work headers_;
  Work work_;
  std::string where_;
  Compare compare_;
};

std::unique_ptr<Communicator> make_twin(Communicator& comm) {
  std::vector<int> all(static_cast<std::size_t>(comm.size()));
  std::iota(all.begin(), all.end(), 0);
  return comm.group(all, std::string(comm.name()) + ".check");
}

class Checked final : public Decorator {
 public:
  explicit Checked(std::unique_ptr<Communicator> inner)
      : Decorator(std::move(inner)), twin_(make_twin(this->inner())) {}

 private:
  Work run(const Call& call) override {
    if (call.operation == Operation::kSend || call.operation == Operation::kRecv) {
      const bool stranger = call.sequence == 0;
      if (stranger) return forward(call);  // it says so itself
      return call.operation == Operation::kSend ? send_checked(call) : recv_checked(call);
    }
    const at::Tensor mine = to_tensor(pack_header(call, size()));
    at::Tensor all = make_numbers(size() * mine.numel());
    Work headers = quatrain::all_gather(*twin_, all, mine);
    std::vector<int> names(ranks().begin(), ranks().end());
    return start(call, std::move(headers),
                 [all, names = std::move(names)] { return disagreement(numbers(all), names); });
  }
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) override {
    return make_checked(std::move(group));
  }

  Work send_checked(const Call& call) {
    const at::Tensor mine = to_tensor(pack_header(call, size()));
    return start(call, twin_->send(mine, call.peer), [] { return std::nullopt; });
  }

  Work recv_checked(const Call& call) {
    const at::Tensor mine = to_tensor(pack_header(call, size()));
    at::Tensor theirs = at::empty(mine.sizes(), mine.options());
    Work headers = twin_->recv(theirs, call.peer);
    const auto compare = [mine, theirs, n = size(), self = world_rank(rank()),
                          from = world_rank(call.peer)]() -> std::optional<std::string> {
      if (message_fits(numbers(theirs), numbers(mine))) return std::nullopt;
      return fmt::format("rank {} calls {}, rank {} calls {}", from,
                         describe_header(numbers(theirs), n), self,
                         describe_header(numbers(mine), n));
    };
    return start(call, std::move(headers), compare);
  }

  Work start(const Call& call, Work headers, Compare compare) {
    Work work = forward(call);
    return Work(std::make_unique<CheckedState>(std::move(headers), std::move(work), where(call),
                                               std::move(compare)));
  }

  std::unique_ptr<Communicator> twin_;
};

}  // namespace

std::unique_ptr<Communicator> make_checked(std::unique_ptr<Communicator> inner) {
  return std::make_unique<Checked>(std::move(inner));
}

}  // namespace quatrain
