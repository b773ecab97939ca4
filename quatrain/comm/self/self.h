// SPDX-License-Identifier: Apache-2.0
// The one-rank backend, with the real semantics of every operation, so that no layer asks
// "is there only one of us?".
#pragma once
#include <memory>
#include <string_view>

#include "quatrain/comm/communicator.h"

namespace quatrain {
std::unique_ptr<Communicator> make_self_communicator(std::string_view name = "world");
}  // namespace quatrain
