// SPDX-License-Identifier: Apache-2.0
// Checks that hold on every Communicator, whatever its backend and decorators: each operation
// against a serial reference, bit for bit. All cases follow from `seed`, all numbers from the seed
// and the rank, so ranks need not talk to agree. Every rank of the communicator calls the same
// check with the same arguments. A broken promise throws BugError saying which, where and for what.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "quatrain/comm/communicator.h"

namespace quatrain {

// `amount` random cases of every operation: all dtypes, uneven and empty pieces, tensors with gaps,
// in place, one after the other.
void check_collectives(Communicator& comm, std::uint64_t seed, int amount);

// all_reduce equals reduce_scatter, then all_gather.
void check_reduction_halves(Communicator& comm, std::uint64_t seed, int amount);

// Along each set of axes of a mesh of twos (8 ranks: 2x2x2, 4: 2x2), the even and the odd ranks,
// the world in reverse; null where this rank is not a member. Made by every rank, once.
std::vector<std::unique_ptr<Communicator>> make_overlapping_groups(Communicator& world);

// `count` sequences of mixed operations on the world and on `groups` (made as above): up to eight
// are in flight at once, and each rank waits for its own in an order of its own.
void check_random_sequences(Communicator& world, std::vector<std::unique_ptr<Communicator>>& groups,
                            std::uint64_t seed, int count);

// All of the above.
void check_conformance(Communicator& world, std::uint64_t seed, int amount);

}  // namespace quatrain
