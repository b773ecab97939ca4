// SPDX-License-Identifier: Apache-2.0
// Charts of the literature on composing parallelisms, with the published points and the planner's
// beside them.
#pragma once
#include <string>
#include <vector>

namespace quatrain::bench {

struct Curve {
  std::string name;
  std::vector<double> x;
  std::vector<double> published;  // NaN: no point
  std::vector<double> predicted;  // NaN: the plan does not fit
};
struct Figure {
  std::string file;  // of its SVG, without the ending
  std::string title, x_label, y_label;
  std::vector<Curve> curves;
};

// Narayanan et al., arXiv:2104.04473. Rates count recomputation, as the paper does.
Figure pipeline_against_batch();   // figure 11: 121B/8 of each stage, tp 8, batch 8 and 128
Figure tensor_against_pipeline();  // figure 13: 162.2B on 64 A100
Figure recompute_against_batch();  // figure 17: 145B on 128 A100
Figure zero3_against_3d();         // table 2: fixed batch, more GPUs
// nanotron's ultra-scale playbook: a 3B model, tokens/s a GPU by tp.
Figure tensor_degree();
// Austin et al., "How to scale your model": share of the compute bound by tokens a chip of a
// 4 x 4 x 4 TPU v5p; lines of bounds alone.
Figure roofline();
// Mixtral 8x7B on 64 H100, ranks of eight that share the experts: widths cut over etp of them, the
// other 8 / etp hold whole experts; beside attention that is cut alike, and that is not cut.
Figure experts_by_width();

// Llama 3.1 8B on two nodes of H100, its sequences shared by cp 16, so that keys and values cross
// the network: tokens/s a GPU by style and length. Simulated, without published points.
Figure context_styles_against_length();
// The same within one node, by cp 8.
Figure context_styles_in_a_node();

std::vector<Figure> lecture_figures();
// Lines: predicted; dots: published, where there are any.
std::string svg(const Figure& figure);

}  // namespace quatrain::bench
