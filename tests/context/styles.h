// SPDX-License-Identifier: Apache-2.0
// The styles of context parallelism and the models that run under them.
#pragma once
#include <string>
#include <vector>

#include "tests/experts/grid.h"

namespace quatrain {

inline std::vector<ModelSpec> context_families() {
  std::vector<ModelSpec> all = {tensor_gpt2(), tensor_llama(), tiny_qwen3()};
  for (const ModelSpec& spec : expert_models()) all.push_back(spec);
  return all;
}

struct Style {
  std::string name;
  int ranks, heads = 1;
  bool zigzag = true;
};
inline const std::vector<Style>& context_styles() {
  static const std::vector<Style> all = {{"ring", 2},
                                         {"ring", 3},
                                         {"ring", 4, 1, false},
                                         {"all_gather", 2},
                                         {"all_gather", 3, 1, false},
                                         {"ulysses", 2},
                                         {"ulysses", 4},
                                         {"hybrid", 4, 2}};
  return all;
}

inline Geometry with_style(Geometry geometry, const Style& style) {
  geometry.context = style.ranks;
  geometry.context_style = style.name;
  geometry.context_heads = style.heads;
  geometry.zigzag = style.zigzag;
  return geometry;
}

// Whether heads can be shared so.
inline bool fits(const ModelSpec& spec, const Geometry& geometry) {
  const ContextSplit split{
      .degree = geometry.context,
      .heads = geometry.context_style == "ulysses" ? geometry.context : geometry.context_heads};
  return check_context(spec, geometry.tensor, split, 9).empty();
}

}  // namespace quatrain
