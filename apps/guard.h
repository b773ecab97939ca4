// SPDX-License-Identifier: Apache-2.0
// Turns what a command throws into one line on stderr and an exit code; never a stack trace for a
// user's mistake.
#pragma once
#include <functional>
#include <string>

namespace quatrain::apps {

enum ExitCode : int {
  kDone = 0,
  kCheckSaidNo = 1,
  kUsage = 2,
  kBadData = 65,
  kPeerFailed = 69,
  kOurBug = 70,
  kStorage = 74,
  kPreempted = 75
};

// `who` comes before the message: "rank 5: ".
int guarded(const std::function<int()>& command, const std::string& who = "");
// The same without a word.
int code_of(const std::function<int()>& command);

// The code of a job whose ranks ended with these two: 70, 69, 74, 65, 2, 1, 75, 0 from the worst.
int worst(int a, int b);

// One line on stderr, after "quatrain: ".
void say(const std::string& text);

}  // namespace quatrain::apps
