// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding, half-split form, and its tables.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/parallel.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/rope_table.h"
#include "quatrain/kernels/vector.h"

namespace quatrain::kernels {

namespace {

// Llama 3.1: by wavelength, in fractions of the original context.
double llama3_frequency(double frequency, const RopeTableOptions& o) {
  const double turns =
      static_cast<double>(o.original_positions) * frequency / (2.0 * std::numbers::pi);
  if (turns < o.low_freq_factor) return frequency / o.factor;
  if (turns > o.high_freq_factor) return frequency;
  const double keep = (turns - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor);
  return (1.0 - keep) * frequency / o.factor + keep * frequency;
}

// YaRN, section 3.2: the dimension that turns `rotations` times over the original context.
double yarn_dimension(double rotations, const RopeTableOptions& o) {
  const double positions = static_cast<double>(o.original_positions);
  return static_cast<double>(o.head_dim) *
         std::log(positions / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(o.theta));
}

double yarn_frequency(double frequency, double i, const RopeTableOptions& o) {
  const double low = std::max(std::floor(yarn_dimension(o.beta_fast, o)), 0.0);
  double high =
      std::min(std::ceil(yarn_dimension(o.beta_slow, o)), static_cast<double>(o.head_dim) - 1.0);
  if (low == high) high += 0.001;
  const double stretched = std::clamp((i - low) / (high - low), 0.0, 1.0);
  return frequency / o.factor * stretched + frequency * (1.0 - stretched);
}

double amplitude(const RopeTableOptions& o) {
  if (o.stretch != RopeStretch::kYarn) return 1.0;
  if (o.attention_factor > 0.0) return o.attention_factor;
  return o.factor <= 1.0 ? 1.0 : 0.1 * std::log(o.factor) + 1.0;
}

template <typename T>
void fill_table(const RopeTableOptions& options, const RopeTable& table) {
  const std::vector<double> frequencies = rope_frequencies(options);
  const double size = amplitude(options);
  T *cos = mutable_data<T>(table.cos_Pd), *sin = mutable_data<T>(table.sin_Pd);
  for (std::int64_t p = 0; p < table.cos_Pd.size(0); ++p)
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(p) * frequency;
      *cos++ = static_cast<T>(std::cos(angle) * size);
      *sin++ = static_cast<T>(std::sin(angle) * size);
    }
}

// The first and second halves of one head, rotated; sign is -1 for the transpose.
template <typename S>
void rotate(S* x, const Wide<S>* cos, const Wide<S>* sin, std::int64_t half, Wide<S> sign) {
  using T = Wide<S>;
  simd::for_each_vector<T>(half, [&](std::int64_t i, const auto& io) {
    const auto a = io.load(x + i), b = io.load(x + half + i);
    const auto c = io.load(cos + i), s = io.load(sin + i) * sign;
    io.store(x + i, simd::fused(a, c, -(b * s)));
    io.store(x + half + i, simd::fused(b, c, a * s));
  });
}

// The same of a head whose pairs are neighbours.
template <typename S>
void rotate_neighbours(S* x, const Wide<S>* cos, const Wide<S>* sin, std::int64_t half,
                       Wide<S> sign) {
  for (std::int64_t i = 0; i < half; ++i) {
    const Wide<S> a = load(x[2 * i]), b = load(x[2 * i + 1]), s = sin[i] * sign;
    x[2 * i] = store<S>(fused(a, cos[i], -(b * s)));
    x[2 * i + 1] = store<S>(fused(b, cos[i], a * s));
  }
}

template <typename S>
void rotate_rows(const at::Tensor& x_NHd, const at::Tensor& cos, const at::Tensor& sin,
                 const at::Tensor& positions_N, bool inverse, RopePairs pairs) {
  using T = Wide<S>;
  const std::int64_t N = x_NHd.size(0), H = x_NHd.size(1), half = x_NHd.size(2) / 2;
  const std::int64_t row = x_NHd.stride(0), head = x_NHd.stride(1), limit = cos.size(0);
  S* x = mutable_data<S>(x_NHd);
  const T *c = data<T>(cos), *s = data<T>(sin);
  const auto* position = data<std::int64_t>(positions_N);
  for (std::int64_t n = 0; n < N; ++n)
    CHECK(position[n] >= 0 && position[n] < limit, "rope: position {} of row {}, table has {}",
          position[n], n, limit);
  const std::int64_t grain = std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(1, H * half));
  parallel_ranges(N, grain, [&](std::int64_t begin, std::int64_t end) {
    const auto turn = pairs == RopePairs::kHalves ? rotate<S> : rotate_neighbours<S>;
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t h = 0; h < H; ++h)
        turn(x + n * row + h * head, c + position[n] * half, s + position[n] * half, half,
             inverse ? T(-1) : T(1));
  });
}

}  // namespace

std::vector<double> rope_frequencies(const RopeTableOptions& options) {
  const RopeTableOptions& o = options;
  CHECK(o.head_dim > 0 && o.head_dim % 2 == 0, "rope: head dim {} is not even", o.head_dim);
  std::vector<double> out;
  for (std::int64_t i = 0; i < o.head_dim / 2; ++i) {
    const double at = static_cast<double>(i);
    const double frequency = std::pow(o.theta, -2.0 * at / static_cast<double>(o.head_dim));
    switch (o.stretch) {
      case RopeStretch::kNone:
        out.push_back(frequency);
        break;
      case RopeStretch::kLinear:
        out.push_back(frequency / o.factor);
        break;
      case RopeStretch::kLlama3:
        out.push_back(llama3_frequency(frequency, o));
        break;
      case RopeStretch::kYarn:
        out.push_back(yarn_frequency(frequency, at, o));
        break;
    }
  }
  return out;
}

RopeTable rope_table(const RopeTableOptions& options, std::int64_t positions,
                     at::ScalarType dtype) {
  const at::ScalarType type = wide(dtype);
  const RopeTable table{at::empty({positions, options.head_dim / 2}, type),
                        at::empty({positions, options.head_dim / 2}, type)};
  if (type == at::kDouble)
    fill_table<double>(options, table);
  else
    fill_table<float>(options, table);
  return table;
}

void rope_(at::Tensor& x_NHd, const at::Tensor& cos, const at::Tensor& sin,
           const at::Tensor& positions_N, bool inverse, RopePairs pairs) {
  CHECK(x_NHd.dim() == 3 && x_NHd.size(2) % 2 == 0 && x_NHd.stride(2) == 1,
        "rope: x is [N, H, d] with d even and contiguous");
  const at::ScalarType type = wide(x_NHd.scalar_type());
  CHECK(cos.scalar_type() == type && sin.scalar_type() == type && cos.is_contiguous() &&
            sin.is_contiguous() && cos.size(1) == x_NHd.size(2) / 2 && cos.sizes() == sin.sizes(),
        "rope: tables are contiguous [positions, {}], wide", x_NHd.size(2) / 2);
  CHECK(positions_N.numel() == x_NHd.size(0), "rope: {} positions for {} rows", positions_N.numel(),
        x_NHd.size(0));
  const at::Tensor positions = positions_N.contiguous();
  dispatch(x_NHd.scalar_type(), [&](auto tag) {
    rotate_rows<typename decltype(tag)::type>(x_NHd, cos, sin, positions, inverse, pairs);
  });
}

}  // namespace quatrain::kernels
