// SPDX-License-Identifier: Apache-2.0
// Ranks meet at two barriers around each visit: between them only rank 0 touches tensors.
#include "quatrain/verify/run.h"

#include <algorithm>
#include <utility>

#include "quatrain/comm/thread/thread.h"
#include "quatrain/engine/rank_thread.h"

namespace quatrain {
namespace {

using Visit = std::function<bool(const StepView&)>;

// Of each layer's outputs in a step.
struct Squares {
  std::vector<double> sums, counts;
  void add(std::size_t layer, double sum, double count) {
    sums.resize(std::max(layer + 1, sums.size()));
    counts.resize(sums.size());
    sums[layer] += sum;
    counts[layer] += count;
  }
};

// What the rank threads share.
struct Meeting {
  explicit Meeting(int ranks) : held(static_cast<std::size_t>(ranks)) {}
  struct Held {
    ScatteredTensors weights, grads;
    Squares squares;
  };
  std::vector<Held> held;  // by rank
  bool goes_on = true;     // written by rank 0 between the barriers
};

StepView view_of(const Meeting& meeting, StepReport report) {
  StepView view;
  view.step = static_cast<int>(report.step);
  view.report = std::move(report);
  Squares all;
  for (const Meeting::Held& held : meeting.held) {
    merge(view.weights, held.weights);
    merge(view.grads, held.grads);
    for (std::size_t layer = 0; layer < held.squares.sums.size(); ++layer) {
      all.add(layer, held.squares.sums[layer], held.squares.counts[layer]);
    }
  }
  for (std::size_t layer = 0; layer < all.sums.size(); ++layer) {
    view.outputs.push_back(all.sums[layer] / all.counts[layer]);
  }
  return view;
}

class RankRun {
 public:
  RankRun(const Side& side, std::unique_ptr<Communicator> world)
      : side_(side),
        mesh_(side.mesh(world->rank())),
        hooks_(side.hooks ? side.hooks(mesh_) : std::make_unique<RankHooks>()),
        world_(hooks_->wrap(std::move(world))),
        data_(hooks_->wrap(side.data(mesh_))),
        job_(options(), *data_, *world_) {
    hooks_->built(job_);
  }

  void run(int steps, Meeting& meeting, const Visit& visit) {
    if (!meet(StepReport{}, meeting, visit)) return;
    for (int step = 1; step <= steps; ++step) {
      hooks_->begin_step();
      StepReport report = job_.step(step, side_.lr_factor ? side_.lr_factor(step) : 1.0);
      if (!meet(std::move(report), meeting, visit)) return;
    }
  }

 private:
  RankJobOptions options() {
    RankJobOptions options = side_.job;
    options.executor.on_gradients = [hooks = hooks_.get()] { hooks->on_gradients(); };
    options.executor.on_pass = [hooks = hooks_.get()](int stage, Pass& pass) {
      hooks->on_pass(stage, pass);
    };
    options.executor.on_output = [this](int layer, const at::Tensor& output) {
      const at::Tensor y = output.to(at::kDouble);
      squares_.add(static_cast<std::size_t>(layer), y.mul(y).sum().item<double>(),
                   static_cast<double>(y.numel()));
    };
    hooks_->change(options);
    return options;
  }

  bool meet(StepReport report, Meeting& meeting, const Visit& visit) {
    Meeting::Held& own = meeting.held[static_cast<std::size_t>(world_->rank())];
    own.weights = owned_weights(job_.units, mesh_);
    if (report.step > 0) own.grads = owned_grads(job_.units, mesh_);
    own.squares = std::exchange(squares_, {});
    world_->barrier().wait();
    if (world_->rank() == 0) meeting.goes_on = visit(view_of(meeting, std::move(report)));
    world_->barrier().wait();
    own = {};
    return meeting.goes_on;
  }

  const Side& side_;
  Mesh mesh_;
  std::unique_ptr<RankHooks> hooks_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<DataLoader> data_;
  Squares squares_;
  RankJob job_;
};

}  // namespace

void run_steps(const Side& side, int steps, const Visit& visit) {
  const int ranks = side.mesh().world_size();
  Meeting meeting(ranks);
  run_thread_ranks(ranks, {}, [&](std::unique_ptr<Communicator> world) {
    const RankThread prologue({.threads = side.threads});
    RankRun(side, std::move(world)).run(steps, meeting, visit);
  });
}

RunResult run_steps(const Side& side, int steps) {
  RunResult result;
  run_steps(side, steps, [&](const StepView& view) {
    result.weights.push_back(assemble(view.weights));
    if (view.step == 0) return true;
    result.losses.push_back(view.report.loss);
    result.norms.push_back(view.report.grad_norm);
    result.routers.push_back(view.report.router);
    result.grads.push_back(assemble(view.grads));
    result.trace = view.report.trace;
    return true;
  });
  return result;
}

}  // namespace quatrain
