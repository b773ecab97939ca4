// SPDX-License-Identifier: Apache-2.0
// The communicators of data parallelism, made once, at start, in one order on every rank.
#pragma once
#include <memory>

#include "quatrain/comm/communicator.h"
#include "quatrain/mesh/mesh.h"

namespace quatrain {

struct DataGroups {
  std::unique_ptr<Communicator> all;        // every data rank: dp_replicate x dp_shard
  std::unique_ptr<Communicator> shard;      // ranks that share one copy of the parameters
  std::unique_ptr<Communicator> replicate;  // ranks that hold the same shard
  std::unique_ptr<Communicator> owners;     // the shard group again, for control traffic
  std::unique_ptr<Communicator> alone;      // this rank, for control traffic
};
// Names are group_name()'s; "control" for the last.
DataGroups make_data_groups(Communicator& world, const Mesh& mesh);

}  // namespace quatrain
