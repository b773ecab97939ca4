// SPDX-License-Identifier: Apache-2.0
// See guard.h.
#include "apps/guard.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <new>

#include "quatrain/base/error.h"
#include "quatrain/base/log.h"

namespace quatrain::apps {
namespace {

// The exit code of what `command` throws, when `tell` has heard of it.
template <class Tell>
int judged(const std::function<int()>& command, const Tell& tell) {
  const auto end = [&](const char* kind, const std::exception& error, ExitCode code) -> int {
    tell(kind, error);
    return code;
  };
  try {
    return command();
  } catch (const ConfigError& error) {
    return end("", error, kUsage);
  } catch (const DataError& error) {
    return end("bad data: ", error, kBadData);
  } catch (const StorageError& error) {
    return end("storage: ", error, kStorage);
  } catch (const CommError& error) {
    return end("communication: ", error, kPeerFailed);
  } catch (const std::bad_alloc& error) {
    return end("out of memory (train --dry-run prints the bytes a rank needs): ", error, kOurBug);
  } catch (const std::exception& error) {
    return end("internal error, please report it: ", error, kOurBug);
  }
}

}  // namespace

void say(const std::string& text) {
  const std::string line = "quatrain: " + text + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int worst(int a, int b) {
  constexpr std::array kFromTheWorst = {kOurBug, kPeerFailed,  kStorage,   kBadData,
                                        kUsage,  kCheckSaidNo, kPreempted, kDone};
  for (const int code : kFromTheWorst) {
    if (a == code || b == code) return code;
  }
  return std::max(a, b);
}

int guarded(const std::function<int()>& command, const std::string& who) {
  return judged(command, [&](const char* kind, const std::exception& error) {
    say(who + kind + error.what());
    flush_log();
  });
}

int code_of(const std::function<int()>& command) {
  return judged(command, [](const char*, const std::exception&) {});
}

}  // namespace quatrain::apps
