// SPDX-License-Identifier: Apache-2.0
#include "quatrain/verify/stage_fault.h"

#include <utility>

namespace quatrain {
namespace {

class RepeatingSink final : public GradSink {
 public:
  RepeatingSink(GradSink& inner, int times) : inner_(inner), times_(times) {}
  void outer(const ParamRange& p, const at::Tensor& dy_NO, const at::Tensor& x_NI) override {
    for (int i = 0; i < times_; ++i) inner_.outer(p, dy_NO, x_NI);
  }
  void rows(const ParamRange& p, const at::Tensor& g_ND) override {
    for (int i = 0; i < times_; ++i) inner_.rows(p, g_ND);
  }
  void indexed(const ParamRange& p, const at::Tensor& ids_N, const at::Tensor& dy_ND) override {
    for (int i = 0; i < times_; ++i) inner_.indexed(p, ids_N, dy_ND);
  }

 private:
  GradSink& inner_;
  int times_;
};

}  // namespace

void ChangedWeight::on_pass(int stage, Pass& pass) {
  const int count = times(pass.microbatch);
  if (stage != arguments().stage || count == 1) return;
  met();
  sinks_.push_back(std::make_unique<RepeatingSink>(*pass.grads, count));
  pass.grads = sinks_.back().get();
}

int MissingWeight::times(int microbatch) const {
  return microbatch == arguments().microbatch ? 0 : 1;
}

// Of the micro-batch before it, or of the one behind the first.
int WrongWeight::times(int microbatch) const {
  const int own = arguments().microbatch;
  if (microbatch == own) return 0;
  return microbatch == (own > 0 ? own - 1 : 1) ? 2 : 1;
}

Work StaleTied::run(const Call& call, Communicator& group, const Forward& forward) {
  const bool here = group.name() == "pp:tied" && call.operation == Operation::kAllReduce &&
                    tied_copy(job().model.spec(), job().model.stages()) == TiedCopy::kHead;
  if (!here) return forward(call);
  met();
  const at::Tensor own = call.out.clone();
  return then(forward(call), [sum = call.out, own] { sum.copy_(own); });
}

void LossTwice::change(RankJobOptions& options) {
  microbatches_ = options.schedule.num_microbatches;
}

void LossTwice::on_pass(int, Pass& pass) {
  if (microbatches_ > 1) met();
  pass.loss_scale /= microbatches_;
}

}  // namespace quatrain
