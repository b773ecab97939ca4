// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/clock_stages.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/pipeline.h"
#include "quatrain/engine/post_validation.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/engine/row_runner.h"
#include "quatrain/engine/step_numbers.h"
#include "quatrain/schedule/messages.h"

namespace quatrain {
namespace {

// One for all ranks; counts units.
class WallClock {
 public:
  explicit WallClock(std::chrono::nanoseconds unit) : unit_(unit) {}
  double now() const { return (Steady::now() - start_) / unit_; }
  void sleep_until(double time) const {
    std::this_thread::sleep_until(start_ +
                                  std::chrono::duration_cast<Steady::duration>(time * unit_));
  }

 private:
  using Steady = std::chrono::steady_clock;
  std::chrono::duration<double, std::nano> unit_;
  Steady::time_point start_ = Steady::now();
};

struct RankRecord {
  std::vector<ClockEvent> events;
  std::vector<ClockMessage> received;
  double exposed = 0.0;
};

// A message is the time of its send: the receiver knows when it would be there.
class ClockStages final : public StageWork {
 public:
  ClockStages(const Schedule& schedule, const Durations& durations, const WallClock& clock)
      : ranks_(schedule.rank_of_stage.front()), durations_(durations), clock_(clock) {}

  void run(const Action& action) override {
    const double begin = clock_.now();
    clock_.sleep_until(begin + time_of(of_stage(action.stage), action.kind));
    record_.events.push_back({action, begin, clock_.now(), 0});
    free_ = record_.events.back().end;
  }

  at::Tensor slot(const StageEnd&) override { return at::empty({1}, at::kDouble); }
  at::Tensor take(const StageEnd&) override { return at::full({1}, clock_.now(), at::kDouble); }

  void give(const StageEnd& end, at::Tensor sent_at) override {
    const int source = end.stage + (end.forward ? -1 : 1);
    if (rank_of(source) == rank_of(end.stage)) return;
    const double sent = sent_at.item<double>();
    const StageDurations& stage = of_stage(source);
    clock_.sleep_until(sent + (end.forward ? stage.send_forward : stage.send_backward));
    const double used = clock_.now();
    record_.exposed += std::max(0.0, used - std::max(free_, sent));
    record_.received.push_back(
        {message(source, end), rank_of(source), rank_of(end.stage), sent, used});
  }

  RankRecord take_record() { return std::move(record_); }

 private:
  int rank_of(int stage) const { return ranks_[static_cast<std::size_t>(stage)]; }
  const StageDurations& of_stage(int stage) const {
    return durations_.of_stage[static_cast<std::size_t>(stage)];
  }
  static Action message(int source, const StageEnd& end) {
    Action action;
    action.stage = source;
    action.kind = end.forward ? ActionKind::kSendForward : ActionKind::kSendBackward;
    action.microbatch = end.microbatch;
    return action;
  }

  std::vector<int> ranks_;  // [stage]
  const Durations& durations_;
  const WallClock& clock_;
  double free_ = 0.0;  // when the last action ended
  RankRecord record_;
};

// Time 0 is the first action's begin.
Timeline together(std::vector<RankRecord> records) {
  Timeline timeline;
  double first = records[0].events.empty() ? 0.0 : records[0].events[0].begin;
  for (const RankRecord& record : records) {
    if (!record.events.empty()) first = std::min(first, record.events[0].begin);
  }
  for (RankRecord& record : records) {
    for (ClockEvent& event : record.events) event.begin -= first, event.end -= first;
    for (ClockMessage& message : record.received) {
      message.begin -= first;
      message.end -= first;
      timeline.messages.push_back(message);
    }
    timeline.exposed_communication.push_back(record.exposed);
    timeline.per_rank.push_back(std::move(record.events));
  }
  std::ranges::stable_sort(timeline.messages, {}, &ClockMessage::begin);
  sum_up(timeline);
  return timeline;
}

// The steps of one rank.
class RankRun {
 public:
  RankRun(Communicator& world, const Schedule& schedule, StageWork& stages)
      : world_(world),
        row_(schedule.per_rank[static_cast<std::size_t>(world.rank())]),
        pipeline_(world, schedule.rank_of_stage.front()),
        stages_(stages),
        chain_(world, {}) {}

  void run(const ClockRun& options) {
    world_.barrier().wait();
    const bool chained = options.end == StepEnd::kPostValidation;
    for (int step = 0; step < options.steps; ++step) {
      const std::span<const Action> ahead = ahead_of_validation(row_);
      RowRunner runner(pipeline_, stages_, trace_);
      runner.run(ahead);
      if (chained && step > 0) chain_.whole();
      runner.run(std::span(row_).subspan(ahead.size()));
      runner.finish();
      if (chained) chain_.pass_on(StepNumbers(StepNumbers::Size{}));
      if (!chained && options.steps > 1) StepNumbers(StepNumbers::Size{}).sum_over(world_);
    }
    if (chained) chain_.whole();
  }

 private:
  Communicator& world_;
  const std::vector<Action>& row_;
  Pipeline pipeline_;
  StageWork& stages_;
  NumberChain chain_;
  TraceRecorder trace_;
};

}  // namespace

Timeline run_on_clock(const Schedule& schedule, const Durations& durations, const ClockRun& run) {
  CHECK(schedule.rank_of_stage.size() == 1, "{} replicas", schedule.rank_of_stage.size());
  std::vector<RankRecord> records(schedule.per_rank.size());
  const WallClock clock(run.unit);
  run_thread_ranks(static_cast<int>(records.size()), {}, [&](std::unique_ptr<Communicator> world) {
    const RankThread prologue({});
    ClockStages stages(schedule, durations, clock);
    RankRun(*world, schedule, stages).run(run);
    records[static_cast<std::size_t>(world->rank())] = stages.take_record();
  });
  return together(std::move(records));
}

double step_period(const Timeline& timeline, int steps) {
  CHECK(steps >= 2, "{} steps have no period", steps);
  double longest = 0.0;
  for (const std::vector<ClockEvent>& row : timeline.per_rank) {
    const std::size_t first = row.size() / static_cast<std::size_t>(steps);
    if (first == 0) continue;
    longest = std::max(longest, (row.back().end - row[first - 1].end) / (steps - 1));
  }
  return longest;
}

}  // namespace quatrain
