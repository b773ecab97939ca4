// SPDX-License-Identifier: Apache-2.0
// A call as a row of int64, so that ranks can compare what they call. Internal to checked.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quatrain/comm/decorator.h"

namespace quatrain {

// Numbers in the header of a group of n ranks.
std::int64_t header_size(int n);

std::vector<std::int64_t> pack_header(const Call& call, int n);

// "all_gather #7 Float[8, 4] rows {8, 8}", "broadcast #2 Long[3] root 1"
std::string describe_header(std::span<const std::int64_t> header, int n);

// Where the headers of all ranks, laid end to end, disagree: "rank 2 calls ..., rank 0 calls ...";
// `ranks` are their names. Nothing when they agree.
std::optional<std::string> disagreement(std::span<const std::int64_t> headers,
                                        std::span<const int> ranks);

// Whether a message fits the tensor that receives it: dtype, shape and sequence number.
bool message_fits(std::span<const std::int64_t> sent, std::span<const std::int64_t> received);

}  // namespace quatrain
