// SPDX-License-Identifier: Apache-2.0
// Makes the Communicator of one link; a group's messages are told from others' by its own MPI
// communicator, an operation's by its tag.
#pragma once
#include <memory>

#include "quatrain/comm/communicator.h"
#include "quatrain/comm/mpi/engine.h"

namespace quatrain {

// Tags below are dealt to collectives in turn; MPI promises 32,767 of them.
inline constexpr int kMpiMessageTag = 32000;  // send and recv: in order, whoever's they are
inline constexpr int kMpiMeetingTag = 32001;  // before a group is made or MPI ends

// `engine` and `link` outlive the communicator.
std::unique_ptr<Communicator> make_mpi_communicator(MpiEngine& engine, const MpiLink& link);

// Returns when all of these ranks of the link have come here; others need not.
void mpi_meeting(MpiEngine& engine, const MpiCall& call, std::span<const int> ranks);

}  // namespace quatrain
