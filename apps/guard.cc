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

int report(const std::string& who, const char* kind, const std::exception& error, ExitCode code) {
  say(who + kind + error.what());
  flush_log();
  return code;
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
  try {
    return command();
  } catch (const ConfigError& error) {
    return report(who, "", error, kUsage);
  } catch (const DataError& error) {
    return report(who, "bad data: ", error, kBadData);
  } catch (const StorageError& error) {
    return report(who, "storage: ", error, kStorage);
  } catch (const CommError& error) {
    return report(who, "communication: ", error, kPeerFailed);
  } catch (const std::bad_alloc& error) {
    return report(who, "out of memory (train --dry-run prints the bytes a rank needs): ", error,
                  kOurBug);
  } catch (const std::exception& error) {
    return report(who, "internal error, please report it: ", error, kOurBug);
  }
}

}  // namespace quatrain::apps
