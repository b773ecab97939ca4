// SPDX-License-Identifier: Apache-2.0
// See agreed.h.
#include "apps/agreed.h"

#include "apps/guard.h"
#include "quatrain/base/error.h"

namespace quatrain::apps {

void agreed(const std::function<void()>& f) {
  try {
    f();
  } catch (const ConfigError&) {
    throw AgreedError(std::current_exception());
  } catch (const DataError&) {
    throw AgreedError(std::current_exception());
  } catch (const StorageError&) {
    throw AgreedError(std::current_exception());
  }
}

int ending_together(const Communicator& world, const std::function<int()>& f) {
  try {
    return f();
  } catch (const AgreedError& error) {
    const auto rethrow = [&]() -> int { std::rethrow_exception(error.cause()); };
    return world.rank() == 0 ? guarded(rethrow) : code_of(rethrow);
  }
}

}  // namespace quatrain::apps
