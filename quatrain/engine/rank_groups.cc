// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/rank_groups.h"

#include "quatrain/comm/self/self.h"
#include "quatrain/kernels/check.h"
#include "quatrain/mesh/group_name.h"
#include "quatrain/nn/expert_parallel.h"

namespace quatrain {

RankGroups make_rank_groups(Communicator& world, const Mesh& mesh, bool experts) {
  CHECK(world.size() == mesh.world_size() && world.rank() == mesh.rank(),
        "rank {} of {} with the mesh {}", world.rank(), world.size(), mesh.to_string());
  const auto group = [&](AxisSet axes) {
    return world.group(mesh.group(axes), group_name(mesh, axes));
  };
  const auto control = [&](AxisSet axes) { return world.group(mesh.group(axes), "control"); };
  const AxisSet shard{Axis::kDpShard, Axis::kCp};
  const AxisSet all = shard | Axis::kDpReplicate;
  RankGroups groups;
  groups.all = group(all);
  groups.shard = group(shard);
  groups.replicate = group(Axis::kDpReplicate);
  groups.tensor_listener = std::make_unique<CommListener>();
  groups.tensor = make_timed(group(Axis::kTp), *groups.tensor_listener);
  groups.context = make_timed(group(Axis::kCp), *groups.tensor_listener);
  groups.pipe = group(Axis::kPp);
  groups.control.samples = control(all - Axis::kCp);
  groups.control.all = control(all);
  groups.control.pipe = control(Axis::kPp);
  groups.control.shard = control(shard);
  groups.control.tensor = control(Axis::kTp);
  groups.control.shard_tensor = control(shard | Axis::kTp);
  groups.control.alone = make_self_communicator("control");
  if (!experts) return groups;
  const AxisSet expert_shard = Axis::kEdpShard;
  const AxisSet block{Axis::kEp, Axis::kEtp};
  RankGroups::Experts& of = groups.experts.emplace();
  of.all = group(expert_shard | Axis::kEdpReplicate);
  of.shard = group(expert_shard);
  of.replicate = group(Axis::kEdpReplicate);
  of.exchange = make_timed(world.group(expert_exchange(mesh), "ep"), *groups.tensor_listener);
  of.control_shard = control(expert_shard);
  of.control_block = control(block);
  of.control_all = control(expert_shard | block);
  return groups;
}

}  // namespace quatrain
