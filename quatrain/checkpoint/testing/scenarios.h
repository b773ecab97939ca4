// SPDX-License-Identifier: Apache-2.0
// What must hold of any save and load, tried a number of times: a little of it in every test run,
// much more in the soak.
#pragma once
#include <cstdint>

namespace quatrain::testing {

// Saves random tensors cut among random ranks, loads them under other cuts and other ranks, and
// verifies the checkpoint: the same bits.
void expect_round_trip(std::uint64_t seed);

// Flips random bits and cuts or extends files of a checkpoint, one at a time: verification names
// the file, and the tensor where the bit is one's; a load refuses it.
void expect_damage_found(std::uint64_t seed, int flips, int cuts);

// States after a power loss in the middle of saves: the newest checkpoint loads, whole, and is the
// last acknowledged or the one being saved.
void expect_whole_after_power_loss(std::uint64_t seed, int states);

// Every call that a save or load makes of the file system fails once, in every way: the save
// succeeds, or fails on all ranks alike and leaves the checkpoint before it; a load gets one of the
// checkpoints, whole, or a named error.
void expect_faults_survived(std::uint64_t seed, bool async);

}  // namespace quatrain::testing
