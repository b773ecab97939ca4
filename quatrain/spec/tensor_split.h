// SPDX-License-Identifier: Apache-2.0
// The list of parameters as one rank of the tensor-parallel group holds it (Shoeybi et al.,
// arXiv:1909.08053, section 3; with sequence parallelism Korthikanti et al., arXiv:2205.05198):
// which box of each, who holds the same one, and whose gradients add up.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/spec/parameters.h"
#include "quatrain/spec/plan.h"

namespace quatrain {

// A rank's place among those that hold the experts of a layer between them: each rank of ep has
// other experts, each rank of etp a share of their widths.
struct ExpertSplit {
  int ep = 1, ep_rank = 0;
  int etp = 1, etp_rank = 0;
  // Of a layer's experts those that are here.
  Range held(std::int64_t experts) const { return piece(experts, ep, ep_rank); }
  bool holds(std::int64_t expert, std::int64_t experts) const {
    const Range here = held(experts);
    return here.begin <= expert && expert < here.end;
  }
  friend bool operator==(const ExpertSplit&, const ExpertSplit&) = default;
};

// A rank's place among those that share each matrix.
struct TensorSplit {
  int degree = 1;
  int rank = 0;
  bool sequence_parallel = false;           // the residual stream's rows are cut as well
  std::optional<ExpertSplit> experts = {};  // nothing: experts are cut as dense matrices are
  ExpertSplit expert_split() const {
    return experts.value_or(ExpertSplit{.etp = degree, .etp_rank = rank});
  }
  // Where ranks of tp hold different shares of the experts (etp < tp), each sends a slice of a
  // micro-batch's rows; where a row's expert is cut over more ranks, the row goes to all of those
  // that read it from one rank. A rank exchanges rows with so many.
  int expert_slices() const { return std::max(1, degree / expert_split().etp); }
  int expert_slice(int tp_rank) const {
    return expert_slices() == 1 ? 0 : tp_rank / expert_split().etp;
  }
  int expert_copies() const { return std::max(1, expert_split().etp / degree); }
  int exchange_ranks() const { return expert_split().ep * expert_copies(); }
};
TensorSplit tensor_split(const Plan& plan, int world_rank);

// The ranks that share each matrix, alone, in both views.
Mesh mesh_of(int degree, int rank);

struct LocalParameter {
  ParameterInfo info;         // its placement with the repeats that this degree needs
  Box box;                    // of the global tensor; empty: an expert of another rank
  int replicas = 1;           // neighbours along tp that hold this box, ranks [k, k + replicas)
  bool partial_grad = false;  // each replica's backward leaves one term of the gradient
  bool counted = true;        // where each element counts once: the first of the replicas
  const std::vector<std::int64_t>& shape() const { return box.size; }
  bool held() const { return box.numel() > 0; }
};
// In the order of parameters(model). Throws ConfigError when check_split() has a problem.
std::vector<LocalParameter> local_parameters(const ModelSpec& model, const TensorSplit& split);
std::vector<LocalParameter> local_parameters(const ModelSpec& model, const TensorSplit& split,
                                             const WantedBlock& wanted);

// As for whole parameters.
Problems set_trainable(std::vector<LocalParameter>& list, const std::vector<std::string>& patterns);

// Of one rank alone.
std::vector<LocalParameter> whole_parameters(std::vector<ParameterInfo> list);

// What keeps a model from being cut so, each with the degrees that fit. Widths and vocabularies may
// be cut unevenly; heads may not, and a rank holds whole groups of query heads. Each rank of ep
// holds as many experts; one of tp and etp divides the other.
Problems check_split(const ModelSpec& model, const TensorSplit& split);

}  // namespace quatrain
