// SPDX-License-Identifier: Apache-2.0
// See guard.h.
#include "apps/guard.h"

#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "quatrain/base/error.h"
#include "quatrain/base/log.h"

namespace quatrain::apps {
namespace {

int say(const char* kind, const std::exception& error, ExitCode code) {
  const std::string text = std::string("quatrain: ") + kind + error.what() + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  flush_log();
  return code;
}

}  // namespace

int guarded(const std::function<int()>& command) {
  try {
    return command();
  } catch (const ConfigError& error) {
    return say("", error, kUsage);
  } catch (const DataError& error) {
    return say("bad data: ", error, kBadData);
  } catch (const StorageError& error) {
    return say("storage: ", error, kStorage);
  } catch (const CommError& error) {
    return say("communication: ", error, kPeerFailed);
  } catch (const std::bad_alloc& error) {
    return say("out of memory (train --dry-run prints the bytes a rank needs): ", error, kOurBug);
  } catch (const std::exception& error) {
    return say("internal error, please report it: ", error, kOurBug);
  }
}

}  // namespace quatrain::apps
