// SPDX-License-Identifier: Apache-2.0
// What the group of a set of axes is called, in messages, counters and predictions alike.
#pragma once
#include <string>

#include "quatrain/mesh/mesh.h"

namespace quatrain {

// "dp" for a group that spans all ranks with other tokens, "edp" for all that hold the same
// experts, "cp" for ranks that share sequences; else the axes' own names ("dp_shard").
inline std::string group_name(const Mesh& mesh, AxisSet axes) {
  if (axes == AxisSet(Axis::kCp)) return "cp";
  const AxisSet data{Axis::kDpReplicate, Axis::kDpShard, Axis::kCp};
  if ((axes - data).empty() && mesh.degree(axes) == mesh.degree(data)) return "dp";
  const AxisSet copies = AxisSet(Axis::kEdpReplicate) | Axis::kEdpShard;
  if ((axes - copies).empty() && mesh.degree(axes) == mesh.degree(copies)) return "edp";
  return to_string(mesh.degree(Axis::kCp) == 1 ? axes - Axis::kCp : axes);
}

}  // namespace quatrain
