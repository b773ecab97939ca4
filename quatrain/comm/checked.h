// SPDX-License-Identifier: Apache-2.0
// Compares what the ranks of a group call, over any backend: the mistake that otherwise hangs or
// leaves wrong numbers in a tail becomes an error that names both sides. A debugging mode: every
// operation exchanges a header of 8 (16 + 2n) bytes on a twin group, "<name>.check".
#pragma once
#include <memory>

#include "quatrain/comm/communicator.h"

namespace quatrain {

// Collectives: all ranks must agree on operation, its place in the order of the group's
// collectives, dtype, shape (the rows' shape where pieces differ), rows, root and reduce
// operation; in all_to_all the rows that one rank sends must be those that its peer expects.
// send and recv: the receiver compares dtype, shape and the count of messages between the two;
// a message that is never sent, or never received, is the business of watched.
// The header travels beside the operation, which stays asynchronous; wait() compares first and
// throws CommError: "mpi all_gather #7 on dp {0, 2}: rank 2 calls all_gather #7 Float[8, 4],
// rank 0 calls all_reduce #7 Float[32] sum".
// Makes the twin at once: call it on every member of the group, as group().
std::unique_ptr<Communicator> make_checked(std::unique_ptr<Communicator> inner);

}  // namespace quatrain
