// SPDX-License-Identifier: Apache-2.0
// See wishes.h.
#include "apps/wishes.h"

#include <array>
#include <system_error>

#include "apps/rank_metrics.h"
#include "apps/signals.h"
#include "quatrain/base/log.h"

namespace quatrain::apps {
namespace {

// A file that stays would be a wish for every step.
bool take(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return false;
  std::filesystem::remove(file, error);
  if (error) log_warning(file.string() + " cannot be removed: " + error.message());
  return true;
}

}  // namespace

Wishes agreed_wishes(const std::filesystem::path& run, Communicator& world) {
  std::array<bool, 2> flags{false, StopSignals::received() != 0};
  if (world.rank() == 0) {
    flags[0] = take(run / "save-now");
    flags[1] = take(run / "stop-now") || flags[1];
  }
  any_rank(flags, world);
  return {.save = flags[0], .stop = flags[1]};
}

}  // namespace quatrain::apps
