// SPDX-License-Identifier: Apache-2.0
// From a plan to the rows that its pipeline ranks walk.
#pragma once
#include <string>
#include <vector>

#include "quatrain/schedule/schedule.h"
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/plan.h"

namespace quatrain {

// The compute rows of `plan.schedule`: of a generator by name, or read from a file
// ("file:PATH.csv", as schedule_from_csv()), which may have its own messages. Throws ConfigError
// with every reason why a file does not fit the plan or is no schedule, and for two replicas, of
// which every rank would hold the parameters.
Schedule plan_schedule(const Plan& plan);

// The same with all else that ranks do in a step: messages between pipeline ranks, the sum over the
// two copies of a tied table, optimizer steps, and ZeRO's actions where ranks reduce gradients or
// share matrices. `trainable`: glob patterns; empty: all. Throws as plan_schedule(), check() and
// unit_specs() do.
Schedule lowered_schedule(const ModelSpec& model, const Plan& plan,
                          const std::vector<std::string>& trainable);

}  // namespace quatrain
