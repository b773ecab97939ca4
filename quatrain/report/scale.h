// SPDX-License-Identifier: Apache-2.0
// From values to pixels, and where an axis has its marks.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace quatrain {

struct ChartAxis {
  std::string label = {};                    // with its unit: "tokens/s"
  bool log = false;                          // for values above 0
  std::optional<double> from = {}, to = {};  // absent: as the values need
};

// "0.25", "1,200", "3.4M": short, for marks and tips.
std::string compact(double value);

class Scale {
 public:
  // Covers `values`, of which those that are not finite (or, on a log axis, not above 0) are left
  // out; some interval where none is left. `zero`: the axis begins at 0. Bounds are round numbers
  // unless the axis gives them.
  Scale(const ChartAxis& axis, std::span<const double> values, bool zero = false);

  // Values beyond the bounds lie beyond the pixels.
  double at(double value) const;
  bool shows(double value) const;  // finite, and above 0 on a log axis
  void set_pixels(double from, double to);

  struct Mark {
    double value;
    std::string text;
  };
  const std::vector<Mark>& marks() const { return marks_; }
  double from() const { return from_; }
  double to() const { return to_; }

 private:
  void make_linear(const ChartAxis& axis);
  void make_log(const ChartAxis& axis);
  double unit(double value) const;  // log10 on a log axis

  bool log_;
  double from_ = 0, to_ = 1;
  double first_pixel_ = 0, last_pixel_ = 1;
  std::vector<Mark> marks_;
};

}  // namespace quatrain
