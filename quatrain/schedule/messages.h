// SPDX-License-Identifier: Apache-2.0
// What ranks say to each other, written into the rows. Messages of all ranks come in one total
// order, that of time: where a rank sends, the other stands at the same place of the order and
// receives. So no rank waits in a circle, even where nothing is buffered, and between two ranks
// receives come in the order of sends.
#pragma once
#include <span>
#include <vector>

#include "quatrain/schedule/clock.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

// SEND behind each computation whose result another rank needs, RECV in that rank's row where the
// computation's end falls in time, ahead of what begins then or later. Chunks that share a rank
// need no message. Throws BugError where messages are written already, or the times are not of
// these rows.
Schedule with_messages(const Schedule& schedule, const Timeline& times);
// At times of 1 for F, I and W, 2 for B. Throws ConfigError where a rank waits for ever.
Schedule with_messages(const Schedule& schedule);

// Two copies of tied weights, of the first and the last stage: REDUCE_TIED in both rows, behind all
// computation and messages and ahead of the optimizer. Where one rank holds both stages it has one
// copy, and the rows stay as they are. A second replica has its own pair.
Schedule with_tied_reduce(const Schedule& schedule);

// Post-validation (arXiv:2401.10241, section 4): what a rank runs before it must know whether the
// last step's update stands: everything ahead of its row's first backward. Where it does not, these
// actions run again.
std::span<const Action> ahead_of_validation(const std::vector<Action>& row);
// The RECVs of a rank, anywhere in its row, whose messages other ranks send ahead of validation.
std::vector<Action> received_ahead(const Schedule& schedule, int rank);

}  // namespace quatrain
