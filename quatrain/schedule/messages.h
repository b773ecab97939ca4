// SPDX-License-Identifier: Apache-2.0
// What ranks say to each other, written into the rows. Messages of all ranks come in one total
// order, that of time: where a rank sends, the other stands at the same place of the order and
// receives. So no rank waits in a circle, even where nothing is buffered, and between two ranks
// receives come in the order of sends.
#pragma once
#include <vector>

#include "quatrain/schedule/schedule.h"

namespace quatrain {

// When each action begins and ends: [rank][slot] of a schedule's rows, in any unit.
struct ActionTimes {
  std::vector<std::vector<double>> begin;
  std::vector<std::vector<double>> end;
};

// F, I and W take 1, B and a pair 2 and 3, everything else and messages 0. Throws BugError for rows
// that wait for ever.
ActionTimes unit_times(const Schedule& schedule);

// SEND behind each computation whose result another rank needs, RECV in that rank's row where the
// computation's end falls in time, ahead of what begins then or later. Chunks that share a rank
// need no message. Throws BugError where messages are written already, or times are not of these
// rows.
Schedule with_messages(const Schedule& schedule, const ActionTimes& times);
Schedule with_messages(const Schedule& schedule);  // unit_times()

// Two copies of tied weights, of the first and the last stage: REDUCE_TIED in both rows, behind all
// computation and messages and ahead of the optimizer. Where one rank holds both stages it has one
// copy, and the rows stay as they are. A second replica has its own pair.
Schedule with_tied_reduce(const Schedule& schedule);

// Forwards and their messages alone, for evaluation and generation.
Schedule forward_only(const Schedule& schedule);

}  // namespace quatrain
