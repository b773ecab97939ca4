// SPDX-License-Identifier: Apache-2.0
// Each parameter's first stage makes it whole over its own ranks, then tells the other stages.
#include "quatrain/engine/whole_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <map>
#include <string_view>
#include <vector>

#include "quatrain/mesh/row_cut.h"
#include "quatrain/nn/whole.h"

namespace quatrain {
namespace {

class WholeModel {
 public:
  WholeModel(ZeroUnits& units, WholeOf what)
      : units_(units), grads_(what == WholeOf::kGrads), list_(parameters(units.model().spec())) {
    for (const UnitShard& shard : units.shards()) {
      for (const Param& param : shard.unit->params()) {
        if (!grads_ || param.info.trainable) here_.emplace(param.info.name, Place{&shard, &param});
      }
    }
    find_owners();
  }

  template <class F>
  void visit(const F& f) {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const auto owner = owners_[i].item<std::int64_t>();
      if (owner == units_.stage_ranks().size()) continue;  // not trainable
      f(list_[i], whole(list_[i], static_cast<int>(owner)));
    }
  }

 private:
  struct Place {
    const UnitShard* shard;
    const Param* param;
  };

  // By parameter, the first stage rank that has it, or their number.
  void find_owners() {
    Communicator& stages = units_.stage_ranks();
    const at::Tensor first =
        at::full({static_cast<std::int64_t>(list_.size())}, stages.size(), at::kLong);
    for (std::size_t i = 0; i < list_.size(); ++i) {
      if (here_.contains(list_[i].name)) first[static_cast<std::int64_t>(i)] = stages.rank();
    }
    if (units_.has_experts()) units_.expert_ranks().all_reduce(first, ReduceOp::kMin).wait();
    stages.all_reduce(first, ReduceOp::kMin).wait();
    owners_ = first.unbind();
  }

  at::Tensor whole(const ParameterInfo& info, int owner) {
    Communicator& stages = units_.stage_ranks();
    at::Tensor tensor;
    if (owner != stages.rank()) {
      tensor = empty(info.shape);
    } else if (info.expert >= 0) {
      tensor = of_block(info);
    } else {
      const Place& place = here_.at(info.name);
      const at::Tensor local = of_unit(*place.shard, *place.param);
      tensor = whole_over(units_.tensor_ranks(), *place.param, local).contiguous();
    }
    if (stages.size() > 1) stages.broadcast(tensor, owner).wait();
    return tensor;
  }

  at::Tensor empty(const std::vector<std::int64_t>& shape) const {
    const at::ScalarType dtype = units_.model().dtype();
    return at::empty(
        shape, at::TensorOptions(grads_ ? wide(dtype) : dtype).device(units_.model().device()));
  }

  // An expert's parameter, of which some of the ranks that hold all experts have shares.
  at::Tensor of_block(const ParameterInfo& info) {
    Communicator& ranks = units_.expert_ranks();
    const int etp = units_.model().split().expert_split().etp;
    const std::int64_t experts = units_.model().spec().experts->num_experts;
    const std::vector<std::int64_t> nothing(info.shape.size(), 0);
    std::vector<Box> boxes;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const ExpertSplit place{ranks.size() / etp, rank / etp, etp, rank % etp};
      boxes.push_back(place.holds(info.expert, experts)
                          ? info.placement.boxes(info.shape, mesh_of(etp, place.etp_rank)).front()
                          : Box{nothing, nothing});
    }
    const auto place = here_.find(info.name);
    const at::Tensor own =
        place != here_.end() ? of_unit(*place->second.shard, *place->second.param) : empty({0});
    return whole_over(ranks, info.shape, boxes, own);
  }

  // This rank's piece of the parameter, out of its unit gathered over the ranks that own it.
  at::Tensor of_unit(const UnitShard& shard, const Param& param) {
    if (gathered_ != &shard) {
      const UnitCuts pieces = cuts(*shard.unit, units_.owners(*shard.unit).size());
      const at::Tensor& own = grads_ ? shard.grad : shard.value;
      const auto& ends = grads_ ? pieces.grads : pieces.values;
      flat_ = at::empty({ends.back()}, own.options());
      units_.owners(*shard.unit).all_gather(flat_, own, sizes_between(ends)).wait();
      gathered_ = &shard;
    }
    const std::int64_t begin = grads_ ? shard.unit->grad_offset(param) : shard.unit->offset(param);
    return flat_.narrow(0, begin, c10::multiply_integers(param.local_shape))
        .view(param.local_shape);
  }

  ZeroUnits& units_;
  bool grads_;
  std::vector<ParameterInfo> list_;
  std::map<std::string_view, Place> here_;
  std::vector<at::Tensor> owners_;
  const UnitShard* gathered_ = nullptr;
  at::Tensor flat_;
};

}  // namespace

void for_each_whole(
    ZeroUnits& units, WholeOf what,
    const std::function<void(const ParameterInfo& info, const at::Tensor& whole)>& f) {
  WholeModel(units, what).visit(f);
}

}  // namespace quatrain
