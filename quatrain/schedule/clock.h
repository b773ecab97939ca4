// SPDX-License-Identifier: Apache-2.0
// The clock of schedules: when each action of each rank begins and ends, given how long each takes.
// Every rank runs its row in order; an action begins when the rank is free and what it needs has
// arrived. Times are in any one unit: that of the durations.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quatrain/schedule/durations.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

// How messages share wires. One lane is one (sender, receiver, F|B), one link a (sender, receiver);
// a lane or link carries its messages one after the other, in the order in which they are sent.
enum class Wires : std::uint8_t { kUnlimited, kLanes, kLinks };

struct Durations {
  std::vector<StageDurations> of_stage;
  Wires wires = Wires::kUnlimited;
  bool rendezvous = false;   // a written message leaves when its RECV is reached as well
  double pair_factor = 1.0;  // an OVERLAP_F_B pair takes this times the sum of its halves
  // Overrides the above: what each action took in a run; a message is asked for as its SEND.
  std::function<double(const Action&)> measured = {};
};

// Every stage takes 1/chunks of F, I and W.
Durations even_durations(const Schedule& schedule, const RankTimes& times);

// Of one action that is no message and of the whole stage. What `of_stage` does not say takes none.
double time_of(const StageDurations& stage, ActionKind kind);

struct ClockEvent {
  Action action;
  double begin = 0.0;
  double end = 0.0;
  // Of the whole timeline: by (begin, sequence), as by (end, sequence), all actions of all ranks
  // are in one order that the data allows.
  std::int64_t sequence = 0;
};

struct ClockMessage {
  Action action;  // the SEND
  int from = 0;   // ranks
  int to = 0;
  double begin = 0.0;
  double end = 0.0;
};

struct Timeline {
  std::vector<std::vector<ClockEvent>> per_rank;  // [rank][its row's order]
  std::vector<ClockMessage> messages;             // in the order in which they were sent
  double makespan = 0.0;                          // from 0 to the last end
  // Of the rank that takes longest, from its first begin to its last end: the step's period where
  // nothing holds all ranks together between steps (Zero Bubble, arXiv:2401.10241, section 5.3).
  double span = 0.0;
  double bubble = 0.0;  // span - a rank's work, in the mean over ranks
  double bubble_rate = 0.0;
  // [rank] time it stood still for messages whose contents were there already.
  std::vector<double> exposed_communication;
};

// Messages that the rows do not write out are sent as their producer ends. Those written out leave
// at their SEND, into a slot that the receiver has ready; neither SEND nor RECV holds its rank up.
// An action on a layer
// (".unit") takes its part of the stage's time. ZeRO's actions take what `measured` says, else 0.
// Throws ConfigError where a rank waits for ever, naming every waiting action and what it waits
// for. Linear in the number of actions.
Timeline simulate(const Schedule& schedule, const Durations& durations);

// Sets makespan, span and bubble from the events.
void sum_up(Timeline& timeline);

// [rank] the most it keeps at once, in the unit of the deltas, of rows whose actions are whole
// stages. `of_stage` empty: in activations of a chunk, freed by the weight half.
std::vector<double> peak_stash(const Schedule& schedule,
                               std::span<const StashDeltas> of_stage = {});

}  // namespace quatrain
