// SPDX-License-Identifier: Apache-2.0
// Gradients of parameters that several tensor-parallel ranks hold and that met other rows or heads
// on each (norm gains under sequence parallelism, norms of q and k, repeated key and value heads):
// each rank's is a term, the sum over the copies is the gradient (cases 013, 014, 094).
#pragma once
#include <memory>

#include "quatrain/comm/communicator.h"
#include "quatrain/nn/param.h"

namespace quatrain {

class ReplicaSums {
 public:
  // `tensor` (borrowed): the ranks that share each matrix. Makes a group where only some of them
  // hold a copy, called "tp_repeat"; `repeat`: how many, 1 when none.
  ReplicaSums(Communicator& tensor, int repeat);

  // Sums this unit's terms in place: at most one all_reduce a group, waited for.
  void sum(ParamUnit& unit);

 private:
  void sum(ParamUnit& unit, int replicas, Communicator& group);

  Communicator& tensor_;
  int repeat_;
  std::unique_ptr<Communicator> neighbours_;
};

}  // namespace quatrain
