// SPDX-License-Identifier: Apache-2.0
// The end of a step: the global norm, whether the gradient can be trusted, clipping and the
// optimizer, over all stages at once or with post-validation (engine/post_validation.h).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "quatrain/engine/expert_bias.h"
#include "quatrain/engine/post_validation.h"
#include "quatrain/engine/step_report.h"
#include "quatrain/engine/zero_units.h"
#include "quatrain/optim/optimizer.h"

namespace quatrain {

struct UpdateOptions {
  double max_norm = 0.0;  // 0: no clipping
  bool post_validation = false;
  double router_z_loss = 0.0;     // coefficient, for the report
  double router_bias_rate = 0.0;  // not with post-validation
};

class Update {
 public:
  // All of it outlives this.
  Update(ZeroUnits& units, Optimizer& optimizer, const UpdateOptions& options);

  // Updates this rank's stages and fills the report; with post-validation the report's numbers, and
  // whether the update stands, come with settle().
  void run(StepReport& report, double lr, const LossSums& seen);

  // With post-validation: whether an update waits to be settled.
  bool pending() const { return pending_; }
  // What the last update's step counted, of all ranks; never set with post-validation.
  const at::Tensor& router_loads() const { return router_loads_LE_; }
  at::Tensor& router_loads() { return router_loads_LE_; }
  // Waits for what all stages know and fills the report of run(). False, on all ranks, where the
  // update does not stand: then mend() makes the right one, and what was computed or gathered since
  // is to be thrown away.
  [[nodiscard]] bool settle(StepReport& report);
  void mend();

 private:
  struct Made {
    double lr;
    std::optional<double> applied;  // what gradients were scaled with; nothing: no update
    std::optional<double> right;    // what they should have been
  };

  // What gradients are to be scaled with; nothing: no update.
  std::optional<double> scale(const StepReport& report, double norm) const;
  void fill(StepReport& report, const StepNumbers& numbers) const;
  RouterReport router_report(const RouterSums& sums, std::int64_t trained_tokens) const;

  ZeroUnits& units_;
  Optimizer& optimizer_;
  UpdateOptions options_;
  std::vector<std::string> names_;  // of the model's parameters, sorted
  NumberChain chain_;
  ExpertBias bias_;
  at::Tensor router_loads_LE_;
  bool pending_ = false;
  Made made_ = {};  // the last one
};

}  // namespace quatrain
