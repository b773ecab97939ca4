// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds of a rank, as boxes of global tensors: no name, box or value says how
// ranks share the model, so any other ranks can take it up.
#pragma once
#include <vector>

#include "quatrain/checkpoint/load.h"
#include "quatrain/checkpoint/piece.h"
#include "quatrain/comm/communicator.h"
#include "quatrain/engine/executor.h"
#include "quatrain/engine/zero_units.h"
#include "quatrain/optim/optimizer.h"

namespace quatrain {

// Views of the values that this rank owns: kind "weight".
std::vector<HeldPiece> weight_pieces(ZeroUnits& units);
// These, and of its trainable parameters the masters and moments: kinds "master", "exp_avg", ...
// The views stay valid as long as units and optimizer live.
std::vector<HeldPiece> state_pieces(ZeroUnits& units, Optimizer& optimizer);

// Behind a load into state_pieces(), by all ranks: values are whole again where ranks keep them
// whole, and the optimizer counts on.
void take_up(ZeroUnits& units, Optimizer& optimizer, const TrainingState& state);

// Executor::router_loads() in TrainingState::extra: added where there are some, and taken up.
inline constexpr const char* kRouterLoadsEntry = "router_loads";
void keep_router_loads(TrainingState& state, const Executor& executor);
// Without an entry the next step begins with even loads. DataError for one of another model.
void take_up_router_loads(const TrainingState& state, const ModelSpec& spec, Executor& executor);

// The weights alone, of a checkpoint that may hold more. Collective over `world`.
void load_checkpoint_weights(FileSystem& files, Communicator& world,
                             const std::filesystem::path& checkpoint, ZeroUnits& units);

}  // namespace quatrain
