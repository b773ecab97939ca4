// SPDX-License-Identifier: Apache-2.0
// SVG as text. Colours are names of the style sheet, which answers for light and dark; a drawing is
// either part of a page that has the sheet, or a file of its own that carries it.
#pragma once
#include <string>
#include <string_view>

namespace quatrain {

// "&", "<", ">" and quotes as entities; control characters that XML forbids become spaces.
std::string escaped(std::string_view text);

struct SvgPoint {
  double x = 0, y = 0;
};
struct SvgBox {
  double left = 0, top = 0, width = 0, height = 0;
};

// Lengths in pixels of the view box; y grows downwards. `style`: classes of chart_style().
class SvgWriter {
 public:
  SvgWriter(double width, double height, std::string_view title);

  // `tip` is shown under the pointer.
  void rect(const SvgBox& box, std::string_view style, std::string_view tip = {});
  void line(SvgPoint from, SvgPoint to, std::string_view style);
  void text(SvgPoint at, std::string_view text, std::string_view style = {});
  // Reads upwards, its middle at `at`.
  void upward_text(SvgPoint at, std::string_view text, std::string_view style = {});
  void circle(SvgPoint at, double radius, std::string_view style, std::string_view tip = {});
  void path(std::string_view commands, std::string_view style);
  // Strength of a heat map's cell, 0 to 1.
  void cell(const SvgBox& box, double strength, std::string_view tip);

  std::string finish();

 private:
  std::string text_;
};

// Colours of series, text and grid, in the light and in the dark scheme of the reader's system.
std::string_view chart_style();
inline constexpr int kNumColours = 8;

// The drawing with style and background: an .svg file.
std::string standalone(std::string_view svg);

// Pixels that `text` takes at the charts' size; an estimate, on the large side.
double text_width(std::string_view text);

}  // namespace quatrain
