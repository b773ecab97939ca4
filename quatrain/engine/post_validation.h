// SPDX-License-Identifier: Apache-2.0
// An update without a flush of the pipeline (Qi et al., "Zero Bubble Pipeline Parallelism",
// arXiv:2401.10241, section 4): a stage updates as soon as it is done, on what it and the stages
// before it know, and goes on with the next step. The last one tells all what came out; where the
// update was not the right one, it is made again from a kept copy, so that the bits are those of
// the plain way.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/engine/step_numbers.h"

namespace quatrain {

// The numbers of one step on their way: from the first rank of a pipeline to the last, each adding
// its own, and back to all.
class NumberChain {
 public:
  // `stages` (borrowed): the ranks of the pipeline.
  NumberChain(Communicator& stages, const StepNumbers::Size& size);

  // Waits for the ranks before this one, adds `own` and passes the sum on; returns it.
  StepNumbers pass_on(StepNumbers own);
  // Of all stages; waits. Once after each pass_on().
  StepNumbers whole();

 private:
  Communicator& stages_;
  StepNumbers::Size size_;
  std::vector<std::pair<Work, StepNumbers>> sent_;  // kept until whole()
  StepNumbers whole_;
  Work told_;
};

}  // namespace quatrain
