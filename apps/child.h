// SPDX-License-Identifier: Apache-2.0
// This program once more, as a process of its own: what it does there can crash, hang or run out
// of memory without this one.
#pragma once
#include <string>
#include <vector>

namespace quatrain::apps {

struct ChildResult {
  std::string out, err;  // what it wrote
  int code = 0;          // of its exit; -1: it ended otherwise
  int signal = 0;        // that ended it
  bool timed_out = false;
  bool done() const { return code == 0; }
  // "ran into SIGKILL", "took longer than 5 s", or its last line on stderr.
  std::string reason(double timeout_s) const;
};

// `arguments`: behind the program's name. Ends the child after `timeout_s` seconds. Throws
// StorageError where no process can be started.
ChildResult run_child(const std::vector<std::string>& arguments, double timeout_s);

}  // namespace quatrain::apps
