// SPDX-License-Identifier: Apache-2.0
// Waits in slices: after each the board learns who is still missing.
#include "quatrain/comm/watched.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/comm/decorator.h"

namespace quatrain {
namespace {

using Clock = std::chrono::steady_clock;
using Deadline = Work::Deadline;

constexpr std::chrono::seconds kSlice{1};

// What operations in flight keep of their communicator, which they may outlive.
struct Group {
  std::string backend;
  std::string name;
  std::vector<int> ranks;  // of the world
  int self;                // of the world
  WatchOptions options;
};

class WatchedState final : public Work::State {
 public:
  WatchedState(Work work, const Call& call, std::shared_ptr<const Group> group)
      : work_(std::move(work)),
        operation_(call.operation),
        sequence_(call.sequence),
        group_(std::move(group)) {}

  bool wait_until(Deadline deadline) override {
    if (!work_.done()) {
      if (limit_ == Work::kNever) limit_ = timeout_from_now();
      const bool done = wait_in_slices(std::min(deadline, limit_));
      // The board of a rank that gives up keeps what it waited for.
      if (!done && deadline > limit_) throw CommError(report());
      show("");
      if (!done) return false;
    }
    work_.wait();  // done: this gives its error, if there is one
    if (WaitBoard* board = group_->options.board) board->finished(where());
    return true;
  }
  bool done() const override { return work_.done(); }
  std::vector<int> absent() const override { return work_.absent(); }

 private:
  std::string where() const {
    return quatrain::where(group_->backend, operation_, sequence_, group_->name, group_->ranks);
  }

  Deadline timeout_from_now() const {
    const std::chrono::duration<double> timeout(group_->options.timeout.value);
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  }

  bool wait_in_slices(Deadline limit) {
    for (;;) {
      show(where() + absent_text(" for"));
      const Deadline slice = std::min(limit, Clock::now() + kSlice);
      if (work_.wait_until(slice)) return true;
      if (slice == limit) return false;
    }
  }

  void show(std::string_view text) const {
    if (WaitBoard* board = group_->options.board) board->waits_for(text);
  }

  std::vector<int> absent_of_world() const {
    std::vector<int> result;
    for (int rank : work_.absent()) {
      result.push_back(group_->ranks[static_cast<std::size_t>(rank)]);
    }
    return result;
  }

  // " from ranks {2}", or nothing when nobody knows.
  std::string absent_text(std::string_view preposition) const {
    const std::vector<int> absent = absent_of_world();
    if (absent.empty()) return "";
    return fmt::format("{} ranks {{{}}}", preposition, fmt::join(absent, ", "));
  }

  std::string report() const {
    const WatchOptions& options = group_->options;
    std::string text = fmt::format("{}: no answer in {} s{}", where(), options.timeout.value,
                                   absent_text(" from"));
    if (options.board != nullptr) {
      text += fmt::format("; rank {} {}", group_->self, options.board->last_finished());
    }
    for (int rank : absent_of_world()) {
      const auto at = static_cast<std::size_t>(rank);
      if (at < options.boards.size()) {
        text += fmt::format("; rank {} {}", rank, options.boards[at].to_string());
      }
    }
    return text;
  }

  Work work_;
  Operation operation_;
  std::int64_t sequence_;
  std::shared_ptr<const Group> group_;
  Deadline limit_ = Work::kNever;
};

class Watched final : public Decorator {
 public:
  Watched(std::unique_ptr<Communicator> inner, const WatchOptions& options)
      : Decorator(std::move(inner)),
        group_(std::make_shared<Group>(Group{.backend = std::string(backend()),
                                             .name = std::string(name()),
                                             .ranks = {ranks().begin(), ranks().end()},
                                             .self = world_rank(rank()),
                                             .options = options})) {}

 private:
  Work run(const Call& call) override {
    return Work(std::make_unique<WatchedState>(forward(call), call, group_));
  }
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) override {
    return make_watched(std::move(group), group_->options);
  }

  std::shared_ptr<const Group> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_watched(std::unique_ptr<Communicator> inner,
                                           const WatchOptions& options) {
  return std::make_unique<Watched>(std::move(inner), options);
}

}  // namespace quatrain
