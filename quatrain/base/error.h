// SPDX-License-Identifier: Apache-2.0
// The three kinds of failure, and the findings of validators. Libraries throw these and nothing
// else of their own; apps/ turns them into one line and an exit code.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

namespace quatrain {

// The user can fix it: usage or configuration (exit code 2).
struct ConfigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A file holds what it should not: token files, tokenizers, weights (exit code 65).
struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A file system or device refused a read or write (exit code 74).
struct StorageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A peer or a link failed (exit code 69).
struct CommError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// We must fix it (exit code 70).
struct BugError : std::logic_error {
  using std::logic_error::logic_error;
};

// One broken rule, found by a validator. Validators return all of them, not the first.
struct Problem {
  std::string where;  // "run.toml:12" or "parallel.tp"
  std::string what;   // "tp = 6 does not divide 32 attention heads"
  std::string hint;   // "divisors that fit: 1 2 4 8 16 32"
  friend bool operator==(const Problem&, const Problem&) = default;
};
using Problems = std::vector<Problem>;

// One line a problem: "where: what; hint".
std::string to_string(const Problems& problems);

// Throws ConfigError with all of them, one a line, unless there are none.
void throw_if_any(const Problems& problems);

}  // namespace quatrain
