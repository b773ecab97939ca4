// SPDX-License-Identifier: Apache-2.0
// See scale.h.
#include "quatrain/report/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "quatrain/base/text.h"

namespace quatrain {
namespace {

constexpr double kWantedMarks = 5;

// 1, 2, 2.5 or 5 times a power of ten.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

std::string trimmed(double value, int digits) {
  std::string text = fmt::format("{:.{}f}", value, digits);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

struct Suffix {
  double from;
  std::string_view text;
};
constexpr std::array kSuffixes = {Suffix{1e12, "T"}, Suffix{1e9, "G"}, Suffix{1e6, "M"},
                                  Suffix{1e4, "k"}};

}  // namespace

std::string compact(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  for (const Suffix& suffix : kSuffixes) {
    const double unit = suffix.text == "k" ? 1e3 : suffix.from;
    if (size >= suffix.from) return trimmed(value / unit, 2) + std::string(suffix.text);
  }
  if (size >= 1000) return with_commas(std::llround(value));
  if (size >= 100) return trimmed(value, 1);
  if (size >= 1 || size == 0) return trimmed(value, 2);
  if (size >= 1e-3) return trimmed(value, 4);
  return fmt::format("{:.2g}", value);
}

Scale::Scale(const ChartAxis& axis, std::span<const double> values, bool zero) : log_(axis.log) {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const double value : values) {
    if (!shows(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  if (least > most) {
    least = log_ ? 1 : 0;
    most = log_ ? 10 : 1;
  }
  from_ = axis.from.value_or(zero && !log_ ? std::min(0.0, least) : least);
  to_ = axis.to.value_or(zero && !log_ ? std::max(0.0, most) : most);
  if (log_) {
    make_log(axis);
  } else {
    make_linear(axis);
  }
}

void Scale::make_linear(const ChartAxis& axis) {
  if (to_ <= from_) {
    const double room = std::max(std::abs(from_) * 0.1, 1e-9);
    if (!axis.from && from_ != 0) from_ -= room;
    to_ = std::max(from_, to_) + (from_ == 0 ? 1 : room);
  }
  const double step = round_step((to_ - from_) / kWantedMarks);
  if (!axis.from) from_ = std::floor(from_ / step + 1e-9) * step;
  if (!axis.to) to_ = std::ceil(to_ / step - 1e-9) * step;
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step))) + 1, 0, 9);
  for (double n = std::ceil(from_ / step - 1e-9); n * step <= to_ + step * 1e-9; ++n) {
    const double value = n * step;
    marks_.push_back(
        {value, std::abs(to_) >= 1000 || digits == 0 ? compact(value) : trimmed(value, digits)});
  }
}

void Scale::make_log(const ChartAxis& axis) {
  if (!axis.from) from_ *= 0.95;
  if (!axis.to) to_ *= 1.05;
  if (to_ <= from_) to_ = 10 * from_;
  const double decades = std::log10(to_ / from_);
  const double stride = std::ceil(decades / 8);
  for (double power = std::floor(std::log10(from_)); std::pow(10, power) <= to_; power += stride) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1 && decades > 2.5) continue;
      const double value = factor * std::pow(10, power);
      if (value >= from_ * (1 - 1e-9) && value <= to_ * (1 + 1e-9)) {
        marks_.push_back({value, compact(value)});
      }
    }
  }
}

double Scale::unit(double value) const { return log_ ? std::log10(value) : value; }

bool Scale::shows(double value) const { return std::isfinite(value) && (!log_ || value > 0); }

void Scale::set_pixels(double from, double to) {
  first_pixel_ = from;
  last_pixel_ = to;
}

double Scale::at(double value) const {
  const double share = (unit(value) - unit(from_)) / (unit(to_) - unit(from_));
  return first_pixel_ + share * (last_pixel_ - first_pixel_);
}

}  // namespace quatrain
