// SPDX-License-Identifier: Apache-2.0
// The walk over one rank's row of a schedule: what is received, computed and sent, and when. Knows
// no schedule by name and nothing of models: stages that train, evaluate or merely wait are behind
// one interface.
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "quatrain/engine/pipeline.h"
#include "quatrain/engine/trace.h"
#include "quatrain/schedule/action.h"

namespace quatrain {

// A micro-batch on its way through a stage: forward, activations go in and out, backward,
// gradients.
struct StageEnd {
  int stage = 0;
  int microbatch = 0;
  bool forward = true;
};

// The stages of one rank. Tensors change hands and are not copied: what is taken or given is the
// receiver's.
class StageWork {
 public:
  virtual ~StageWork() = default;
  // A computation, whose input was given, or any other action that is no message.
  virtual void run(const Action& action) = 0;
  // What another rank's message is received into.
  virtual at::Tensor slot(const StageEnd& end) = 0;
  // The neighbour's output, or its input gradient, ahead of the first computation that reads it.
  virtual void give(const StageEnd& end, at::Tensor x) = 0;
  // The stage's own output, or input gradient, once it is there.
  virtual at::Tensor take(const StageEnd& end) = 0;
};

// Receives are posted where the row says so, and waited for by the first action that needs them.
// Sends go on by themselves: what they send is kept until they are done. Between stages of one rank
// tensors are handed over.
class RowRunner {
 public:
  // All of it outlives this.
  RowRunner(Pipeline& pipeline, StageWork& stages, TraceRecorder& trace)
      : pipeline_(pipeline), stages_(stages), trace_(trace) {}

  // Runs actions. Throws BugError for one that receives or sends what it must not.
  void run(std::span<const Action> row);
  // For the actions so far to run again, on stages that are as they were: lets go of what they
  // received and handed over. `lost`: RECVs, run or not, whose messages were sent and must not be
  // used; they will be sent again. Others that are under way stay so.
  void start_again(std::span<const Action> lost);
  // Waits for what was sent. Throws BugError where something was received and not used.
  void finish();

 private:
  using Key = std::tuple<int, int, bool>;  // of a StageEnd
  struct Message {
    Action action;
    at::Tensor x;
    Work work;
    double began_us;
  };

  void step(const Action& action);
  void receive(const Action& action);
  void send(const Action& action);
  at::Tensor take(const StageEnd& end);
  void ensure_input(const StageEnd& end);
  at::Tensor received(const StageEnd& end);
  void wait(Message& message, TraceLane lane);
  void finish_sends(bool all);

  Pipeline& pipeline_;
  StageWork& stages_;
  TraceRecorder& trace_;
  std::map<Key, Message> receives_;  // posted, not yet used
  std::set<Key> given_;
  std::deque<Message> sends_;
  bool started_again_ = false;
};

}  // namespace quatrain
