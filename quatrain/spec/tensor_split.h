// SPDX-License-Identifier: Apache-2.0
// The list of parameters as one rank of the tensor-parallel group holds it (Shoeybi et al.,
// arXiv:1909.08053, section 3; with sequence parallelism Korthikanti et al., arXiv:2205.05198):
// which box of each, who holds the same one, and whose gradients add up.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/spec/parameters.h"
#include "quatrain/spec/plan.h"

namespace quatrain {

// A rank's place among those that share each matrix.
struct TensorSplit {
  int degree = 1;
  int rank = 0;
  bool sequence_parallel = false;  // the residual stream's rows are cut as well
};
TensorSplit tensor_split(const Plan& plan, int world_rank);

// The ranks that share each matrix, alone: experts are cut as dense matrices are, etp = tp.
Mesh mesh_of(int degree, int rank);

struct LocalParameter {
  ParameterInfo info;         // its placement with the repeats that this degree needs
  Box box;                    // of the global tensor
  int replicas = 1;           // neighbours along tp that hold this box, ranks [k, k + replicas)
  bool partial_grad = false;  // each replica's backward leaves one term of the gradient
  bool counted = true;        // where each element counts once: the first of the replicas
  const std::vector<std::int64_t>& shape() const { return box.size; }
};
// In the order of parameters(model). Throws ConfigError when check_split() has a problem.
std::vector<LocalParameter> local_parameters(const ModelSpec& model, const TensorSplit& split);

// As for whole parameters.
Problems set_trainable(std::vector<LocalParameter>& list, const std::vector<std::string>& patterns);

// Of one rank alone.
std::vector<LocalParameter> whole_parameters(std::vector<ParameterInfo> list);

// What keeps a model from being cut into `degree` parts, each with the degrees that fit. Widths and
// vocabularies may be cut unevenly; heads may not, and a rank holds whole groups of query heads.
Problems check_split(const ModelSpec& model, int degree);

}  // namespace quatrain
