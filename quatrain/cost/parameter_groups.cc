// SPDX-License-Identifier: Apache-2.0
#include "quatrain/cost/parameter_groups.h"

#include <algorithm>

#include "quatrain/base/check.h"

namespace quatrain {

std::int64_t Group::numel() const {
  std::int64_t sum = 0;
  for (const LocalParameter& p : list) sum += p.box.numel();
  return sum;
}

std::int64_t Group::trained_numel() const {
  std::int64_t sum = 0;
  for (const LocalParameter& p : list) sum += p.info.trainable ? p.box.numel() : 0;
  return sum;
}

Cursor::Cursor(std::span<const LocalParameter> all, std::int64_t layer) {
  const auto of_layer = [layer](const LocalParameter& p) { return p.info.layer == layer; };
  const auto begin = std::find_if(all.begin(), all.end(), of_layer);
  const auto end = std::find_if_not(begin, all.end(), of_layer);
  rest_ = all.subspan(static_cast<std::size_t>(begin - all.begin()),
                      static_cast<std::size_t>(end - begin));
}

Group Cursor::take(std::size_t count) {
  CHECK(count <= rest_.size(), "{} parameters left of a unit, {} wanted", rest_.size(), count);
  Group group{rest_.first(count)};
  rest_ = rest_.subspan(count);
  return group;
}

void Cursor::check_done() const {
  CHECK(rest_.empty(), "parameter {} has no operation", rest_.front().info.name);
}

}  // namespace quatrain
