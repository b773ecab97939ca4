// SPDX-License-Identifier: Apache-2.0
// Small things that ranks tell each other around a save or load. What takes a Communicator is
// collective: every rank of it calls, on the thread that owns it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "quatrain/comm/communicator.h"

namespace quatrain {

// Every rank's text, by rank, on every rank.
std::vector<std::string> texts_of_all(Communicator& comm, const std::string& own);
// The same on rank 0 alone; nothing elsewhere.
std::vector<std::string> texts_on_first(Communicator& comm, const std::string& own);
std::string text_of_first(Communicator& comm, const std::string& own);
// The smallest over the ranks.
std::int64_t least_of(Communicator& comm, std::int64_t number);

// An error that can be told to others.
enum class FailureKind : std::uint8_t { kNone, kData, kStorage, kConfig, kBug };
struct Failure {
  FailureKind kind = FailureKind::kNone;
  std::string text = {};
  explicit operator bool() const { return kind != FailureKind::kNone; }
};
// What `f` throws. CommError passes: a rank without peers has nobody to tell.
Failure attempt(const std::function<void()>& f);
// Throws the error again, as its kind; nothing for none.
void raise(const Failure& failure);
// The failure of the lowest rank that has one ("rank 3: ..."), the same on every rank.
Failure first_failure(Communicator& comm, const Failure& own);

}  // namespace quatrain
