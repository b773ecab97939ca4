// SPDX-License-Identifier: Apache-2.0
// What runs while a layer's collective is in flight, read from the order of calls, not from clocks.
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/comm/decorator.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/microbatch.h"
#include "quatrain/engine/rank_thread.h"
#include "tests/tensor/grid.h"

namespace quatrain {
namespace {

using ::testing::ElementsAre;

using Log = std::vector<std::string>;

// Writes down when operations start and when they are waited for.
class Spy final : public Decorator {
 public:
  Spy(std::unique_ptr<Communicator> inner, Log& log) : Decorator(std::move(inner)), log_(log) {}

 private:
  struct State final : Work::State {
    State(Work w, std::string n, Log& l) : work(std::move(w)), name(std::move(n)), log(l) {}
    bool wait_until(Work::Deadline deadline) override {
      log.push_back("wait " + name);
      return work.wait_until(deadline);
    }
    bool done() const override { return work.done(); }
    Work work;
    std::string name;
    Log& log;
  };
  Work run(const Call& call) override {
    const std::string operation(quatrain::name(call.operation));
    log_.push_back("start " + operation);
    return Work(std::make_unique<State>(forward(call), operation, log_));
  }
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) override {
    return std::make_unique<Spy>(std::move(group), log_);
  }
  Log& log_;
};

class SpySink final : public GradSink {
 public:
  explicit SpySink(Log& log) : log_(log) {}
  void outer(const ParamRange& p, const at::Tensor& dy, const at::Tensor& x) override {
    const std::string& name = p.last->info.name;
    const std::string in_block = name.substr(name.find("layers.") + 9);
    log_.push_back(in_block.substr(0, in_block.rfind(".weight")));
    sink_.outer(p, dy, x);
  }
  void rows(const ParamRange& p, const at::Tensor& g) override { sink_.rows(p, g); }
  void indexed(const ParamRange& p, const at::Tensor& ids, const at::Tensor& dy) override {
    sink_.indexed(p, ids, dy);
  }

 private:
  Log& log_;
  AccumulatingSink sink_;
};

// The calls of block 1's backward on rank 0 of two.
Log block_backward(TensorParallelOptions options, bool fused) {
  Log result;
  run_thread_ranks(2, {}, [&](std::unique_ptr<Communicator> world) {
    const RankThread prologue({.threads = 1});
    Log log;
    const bool first = world->rank() == 0;
    Spy spy(std::move(world), log);
    Model model(tiny_llama(), {.dtype = at::kDouble, .tp = &spy, .tensor = options});
    model.allocate(true);
    model.initialise(1);
    SpySink sink(log);
    Pass pass;
    const auto ids = at::TensorOptions(at::kLong);
    pass.tokens_BT = at::randint(61, {2, 5}, ids);
    pass.positions_BT = at::arange(5, ids).expand({2, 5}).contiguous();
    pass.labels_BT = pass.tokens_BT;
    pass.grads = &sink;
    Microbatch microbatch(model.layers(), pass);
    microbatch.forward();
    const auto backward = [&](int layer) {
      if (fused) return microbatch.backward(layer);
      microbatch.backward_input(layer);
      microbatch.backward_weight(layer);
    };
    backward(3);
    log.clear();
    backward(2);
    if (first) result = log;
    backward(1);
    backward(0);
  });
  return result;
}

TEST(Overlap, OwnWeightHalvesRunUnderTheSumsOfTheInputHalf) {
  EXPECT_THAT(
      block_backward({}, true),
      ElementsAre("start all_reduce", "mlp.down_proj", "wait all_reduce", "start all_reduce",
                  "mlp.up_proj", "wait all_reduce", "self_attn.o_proj", "self_attn.v_proj"));
}

TEST(Overlap, UnderSequenceParallelismUnderGathersAsWell) {
  EXPECT_THAT(block_backward({.sequence_parallel = true}, true),
              ElementsAre("start all_gather", "wait all_gather", "start reduce_scatter",
                          "mlp.down_proj", "wait reduce_scatter", "start all_gather", "mlp.up_proj",
                          "wait all_gather", "start reduce_scatter", "self_attn.o_proj",
                          "wait reduce_scatter", "self_attn.v_proj"));
}

// A deferred weight half gathers all four of its inputs, a fused one the two of the forward.
TEST(Overlap, GatheringAgainIsTwoOrFourMore) {
  const TensorParallelOptions again{.sequence_parallel = true, .gather_again = true};
  const auto gathers = [](const Log& log) {
    return std::count(log.begin(), log.end(), "start all_gather");
  };
  EXPECT_EQ(gathers(block_backward({.sequence_parallel = true}, true)), 2);
  EXPECT_EQ(gathers(block_backward({.sequence_parallel = true}, false)), 2);
  EXPECT_EQ(gathers(block_backward(again, true)), 4);
  EXPECT_EQ(gathers(block_backward(again, false)), 6);
}

// Two blocks of 2 + 2 + 2 + 2 collectives; the embedding's sum and its weight half's gather; the
// head's gather and reduction, and a chunk's statistics.
TEST(Overlap, TracesShowTheCollectivesOfLayers) {
  const Recipe recipe{.spec = tensor_llama(), .global_batch = 1, .seq = 6, .steps = 1};
  const RunResult run = run_on_threads(recipe, {.tensor = 2, .sequence_parallel = true});
  std::map<std::string, int> calls;
  for (const TraceEvent& event : run.trace) {
    if (event.lane != TraceLane::kTensor) continue;
    EXPECT_LE(event.begin_us, event.end_us);
    ++calls[event.what];
  }
  EXPECT_EQ(calls["tp reduce_scatter"], 2 * 4 + 2);
  EXPECT_EQ(calls["tp all_gather"], 2 * 4 + 3);
}

}  // namespace
}  // namespace quatrain
