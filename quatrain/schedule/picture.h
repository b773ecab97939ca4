// SPDX-License-Identifier: Apache-2.0
// Timelines as pictures: a grid for a terminal, SVG, and a Chrome trace in the format of measured
// ones.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/schedule/clock.h"

namespace quatrain {

struct GridOptions {
  int columns = 100;    // of the terminal; what is longer is folded into blocks below each other
  bool colour = false;  // ANSI: a line a rank; else two, the kind above the micro-batch
};
// Without colour, small letters are a rank's second and further chunks, and the second replica.
// Micro-batches are decimal where all cells are wide enough, else 0-9, a-z, A-Z, then *.
std::string to_grid(const Timeline& timeline, const GridOptions& options);

// Colours as in the papers: F blue, I turquoise, W green, B from one to the other, messages orange,
// the optimizer purple; a rank's second and further chunks, and the second replica, are lighter.
std::string to_svg(const Timeline& timeline, std::string_view title);

struct TraceLabels {
  double us_per_unit = 1.0;
  double begin_us = 0.0;               // of the timeline's 0
  int first_process = 0;               // of rank 0; another for a run laid beside this
  std::string_view process = "rank ";  // before the rank's number
};
// One JSON array of trace events a rank, as to_chrome_rows() of engine/trace.h gives: computation
// in thread 0, "compute", messages that a rank sends in thread 5, "send".
std::vector<std::string> chrome_rows(const Timeline& timeline, const TraceLabels& labels);
// The document: opens in chrome://tracing and Perfetto.
std::string to_chrome_trace(const Timeline& timeline, const TraceLabels& labels = {});

// What pictures share: the halves of pairs apart, and the shade of each.
struct Tile {
  Action action;  // no pair
  double begin = 0.0;
  double end = 0.0;
  bool light = false;        // a further chunk, or the second replica
  int half = 0, halves = 1;  // its place in a pair
  // Of its time, where halves are drawn one after the other: a fused backward is twice a forward.
  double share_begin = 0.0, share_end = 1.0;
};
std::vector<std::vector<Tile>> tiles(const Timeline& timeline);  // [rank], those that take time

}  // namespace quatrain
