// SPDX-License-Identifier: Apache-2.0
// How long a collective takes, by latency and bandwidth (Hockney's alpha-beta), in two levels: the
// ranks of a group that share a fast domain, then one of each domain over the network.
#pragma once
#include "quatrain/planner/cluster.h"

namespace quatrain {

// Ranks r, r + stride, ...: `size` of them.
struct GroupShape {
  int size = 1;
  int stride = 1;
};
// kSend: from the first of the group to the second.
enum class CommKind : std::uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kSend };

// Of one collective; 0 for groups of one. `bytes`: the whole tensor that a rank has before or after
// (all_gather: after), which for an all_to_all is what it holds; of a send the message.
double collective_seconds(const ClusterSpec& cluster, CommKind kind, GroupShape group,
                          double bytes);

// Whether all of the group's ranks share a domain.
bool inside_domain(const ClusterSpec& cluster, GroupShape group);

}  // namespace quatrain
