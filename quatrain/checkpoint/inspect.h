// SPDX-License-Identifier: Apache-2.0
// Checkpoints for people: what one holds, whether all of it is whole, how two differ. Not
// collective.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/checkpoint/file_system.h"
#include "quatrain/checkpoint/manifest.h"

namespace quatrain {

// Every fault of a checkpoint, reading all of it: damage of any byte, files that are missing, too
// long, not safetensors, or not what the manifest says; pieces that overlap or leave gaps. `where`
// is the file, `what` names the tensor. Empty: all of it is whole.
Problems verify_checkpoint(FileSystem& files, const std::filesystem::path& checkpoint);

// Lines of text: the state, the plan that saved it, and bytes by kind and dtype; with `tensors` a
// line for each of them.
std::string describe(const Manifest& manifest, bool tensors = false);

struct TensorDifference {
  TensorId id;
  std::string what;             // "only in the first", "F32 [4, 8] and BF16 [4, 8]", "values"
  std::int64_t elements = 0;    // that differ in their bits
  double max_difference = 0.0;  // of values; NaN where one side is NaN
};
struct CheckpointDifference {
  std::vector<std::string> state;         // "step: 100 and 200"
  std::vector<TensorDifference> tensors;  // in the order of their ids
  bool empty() const { return state.empty() && tensors.empty(); }
};
// Reads both, a tensor at a time; geometries may differ and are no difference. DataError when one
// is damaged.
CheckpointDifference diff_checkpoints(FileSystem& files, const std::filesystem::path& first,
                                      const std::filesystem::path& second);

}  // namespace quatrain
