// SPDX-License-Identifier: Apache-2.0
// Runs as one HTML page that needs nothing else: no script, no network, light and dark.
#pragma once
#include <span>
#include <string>

#include "quatrain/report/run.h"

namespace quatrain {

// At least one run. Runs keep their colour through the page.
std::string report_page(std::span<const RunRecord> runs);

}  // namespace quatrain
