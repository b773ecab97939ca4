// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/step_report.h"

#include <algorithm>
#include <numeric>

namespace quatrain {

double RouterReport::worst_load() const {
  double worst = 0.0;
  for (const std::vector<double>& layer : loads) {
    const double sum = std::accumulate(layer.begin(), layer.end(), 0.0);
    if (sum == 0.0) continue;
    const double largest = *std::max_element(layer.begin(), layer.end());
    worst = std::max(worst, largest * static_cast<double>(layer.size()) / sum);
  }
  return worst;
}

}  // namespace quatrain
