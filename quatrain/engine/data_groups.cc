// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/data_groups.h"

#include "quatrain/comm/self/self.h"
#include "quatrain/kernels/check.h"
#include "quatrain/mesh/group_name.h"

namespace quatrain {

DataGroups make_data_groups(Communicator& world, const Mesh& mesh) {
  CHECK(world.size() == mesh.world_size() && world.rank() == mesh.rank(),
        "rank {} of {} with the mesh {}", world.rank(), world.size(), mesh.to_string());
  const AxisSet shard = Axis::kDpShard;
  const AxisSet replicate = Axis::kDpReplicate;
  const AxisSet all = shard | replicate;
  DataGroups groups;
  groups.all = world.group(mesh.group(all), group_name(mesh, all));
  groups.shard = world.group(mesh.group(shard), group_name(mesh, shard));
  groups.replicate = world.group(mesh.group(replicate), group_name(mesh, replicate));
  groups.owners = world.group(mesh.group(shard), "control");
  groups.alone = make_self_communicator("control");
  return groups;
}

}  // namespace quatrain
