// SPDX-License-Identifier: Apache-2.0
// LayerNorm (Ba et al., arXiv:1607.06450) and RMSNorm (Zhang & Sennrich, arXiv:1910.07467), forward
// and backward, a row at a time while it lies in cache. Sums over a row run in the lanes of one
// register and then in a fixed tree, so a row's bits depend on the row alone.
#include <cmath>
#include <cstdint>

#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/parallel.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/vector.h"

namespace quatrain::kernels {

namespace {

using simd::fused;
using simd::splat;
using simd::Vec;

// Rows of a [..., D] tensor: contiguous ones, or [N, H, D] views with any outer strides.
template <typename S>
struct RowsOf {
  S* data;
  std::int64_t inner, outer_stride, inner_stride;
  S* at(std::int64_t row) const {
    return data + row / inner * outer_stride + row % inner * inner_stride;
  }
};
template <typename S, typename Pointer>
RowsOf<S> rows_of(const at::Tensor& x, Pointer pointer) {
  const std::int64_t D = x.size(-1);
  if (x.is_contiguous()) return {pointer, 1, D, 0};
  CHECK(x.dim() <= 3 && (D == 1 || x.stride(-1) == 1),
        "norm: rows must be contiguous, and only the outer dims of [N, H, D] strided");
  if (x.dim() == 2) return {pointer, 1, x.stride(0), 0};
  return {pointer, x.size(1), x.stride(0), x.stride(1)};
}
template <typename S>
RowsOf<const S> rows_of(const at::Tensor& x) {
  return rows_of<const S>(x, data<S>(x));
}
template <typename S>
RowsOf<S> mutable_rows_of(const at::Tensor& x) {
  return rows_of<S>(x, mutable_data<S>(x));
}

std::int64_t num_rows(const at::Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }
std::int64_t row_grain(std::int64_t D) {
  return std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(1, D));
}

template <typename S>
void add_row(S* x, const S* residual, std::int64_t D) {
  simd::for_each_vector<Wide<S>>(D, [&](std::int64_t i, const auto& io) {
    io.store(x + i, io.load(x + i) + io.load(residual + i));
  });
}

template <typename S>
Wide<S> row_mean(const S* x, std::int64_t D) {
  using T = Wide<S>;
  Vec<T> sum{};
  simd::for_each_vector<T>(D, [&](std::int64_t i, const auto& io) { sum += io.load(x + i); });
  return simd::sum_lanes<T>(sum) / static_cast<T>(D);
}

// Mean of (x - mean)^2.
template <typename S>
Wide<S> row_variance(const S* x, Wide<S> mean, std::int64_t D) {
  using T = Wide<S>;
  Vec<T> sum{};
  simd::for_each_vector<T>(D, [&](std::int64_t i, const auto& io) {
    const Vec<T> centred = io.template zero_behind<T>(io.load(x + i) - mean);
    sum = fused(centred, centred, sum);
  });
  return simd::sum_lanes<T>(sum) / static_cast<T>(D);
}

// y = (x - mean) rstd gain + bias; bias may be null.
template <typename S>
void write_row(const S* x, Wide<S> mean, Wide<S> rstd, const S* gain, const S* bias, std::int64_t D,
               S* y) {
  using T = Wide<S>;
  simd::for_each_vector<T>(D, [&](std::int64_t i, const auto& io) {
    const Vec<T> unit = (io.load(x + i) - mean) * rstd;
    const Vec<T> g = io.load(gain + i);
    io.store(y + i, bias == nullptr ? unit * g : fused(unit, g, io.load(bias + i)));
  });
}

template <typename S>
const S* data_or_null(const at::Tensor& x) {
  return x.defined() ? data<S>(x) : nullptr;
}

void check_vectors(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias) {
  CHECK(gain.numel() == x.size(-1) && gain.is_contiguous() && gain.scalar_type() == x.scalar_type(),
        "norm: the gain is [{}] in the dtype of x", x.size(-1));
  CHECK(!bias.defined() || (bias.sizes() == gain.sizes() && bias.is_contiguous() &&
                            bias.scalar_type() == x.scalar_type()),
        "norm: the bias is like the gain");
}

template <typename S>
void forward_rows(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& gain,
                  const at::Tensor& bias, double eps, const NormOut& out) {
  using T = Wide<S>;
  const std::int64_t D = x.size(-1);
  const auto rows = mutable_rows_of<S>(x), y = mutable_rows_of<S>(out.y);
  const auto added = rows_of<S>(residual.defined() ? residual : x);
  T* rstd = mutable_data<T>(out.rstd);
  T* means = out.mean.defined() ? mutable_data<T>(out.mean) : nullptr;
  const S *g = data<S>(gain), *b = data_or_null<S>(bias);
  parallel_ranges(num_rows(x), row_grain(D), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      S* row = rows.at(n);
      if (residual.defined()) add_row<S>(row, added.at(n), D);
      const T mean = means != nullptr ? row_mean<S>(row, D) : T(0);
      rstd[n] = T(1) / std::sqrt(row_variance<S>(row, mean, D) + static_cast<T>(eps));
      if (means != nullptr) means[n] = mean;
      write_row<S>(row, mean, rstd[n], g, b, D, y.at(n));
    }
  });
}

template <typename S>
void apply_rows(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias,
                const at::Tensor& mean_N, const at::Tensor& rstd_N, const at::Tensor& out) {
  using T = Wide<S>;
  const std::int64_t D = x.size(-1);
  const auto rows = rows_of<S>(x);
  const auto y = mutable_rows_of<S>(out);
  const T *means = data_or_null<T>(mean_N), *rstd = data<T>(rstd_N);
  const S *g = data<S>(gain), *b = data_or_null<S>(bias);
  parallel_ranges(num_rows(x), row_grain(D), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      write_row<S>(rows.at(n), means != nullptr ? means[n] : T(0), rstd[n], g, b, D, y.at(n));
  });
}

template <typename S>
class NormBackward {
 public:
  using T = Wide<S>;
  std::int64_t D;
  RowsOf<const S> dy, x, residual_grad;
  RowsOf<S> dx;
  const T *mean, *rstd;  // mean: null for RMSNorm
  const S* gain;
  bool has_residual;
  T *dgain, *dbias;  // [L, D]; dbias may be null

  // With u = (x - mean) rstd and g = dy gain:
  // dx = rstd (g - mean(g) - u mean(g u)); RMSNorm has no mean(g).
  void input_row(std::int64_t n) const {
    const S *d = dy.at(n), *in = x.at(n);
    const T m = mean != nullptr ? mean[n] : T(0), r = rstd[n];
    Vec<T> sum{}, dot{};
    simd::for_each_vector<T>(D, [&](std::int64_t i, const auto& io) {
      const Vec<T> g = io.load(d + i) * io.load(gain + i);
      sum += g;
      dot = fused(g, (io.load(in + i) - m) * r, dot);
    });
    const T mean_g = mean != nullptr ? simd::sum_lanes<T>(sum) / static_cast<T>(D) : T(0);
    const T mean_gu = simd::sum_lanes<T>(dot) / static_cast<T>(D);
    S* out = dx.at(n);
    const S* above = has_residual ? residual_grad.at(n) : nullptr;
    simd::for_each_vector<T>(D, [&](std::int64_t i, const auto& io) {
      const Vec<T> g = io.load(d + i) * io.load(gain + i);
      const Vec<T> u = (io.load(in + i) - m) * r;
      const Vec<T> inner = fused(u, splat(-mean_gu), g - mean_g);
      io.store(out + i, above == nullptr ? inner * r : fused(inner, splat(r), io.load(above + i)));
    });
  }

  // Adds row n's terms to columns [begin, end) of its leaf's sums.
  void weight_row(std::int64_t n, std::int64_t leaf, std::int64_t begin, std::int64_t end) const {
    const S *d = dy.at(n) + begin, *in = x.at(n) + begin;
    const T m = mean != nullptr ? mean[n] : T(0), r = rstd[n];
    T* gains = dgain + leaf * D + begin;
    T* biases = dbias != nullptr ? dbias + leaf * D + begin : nullptr;
    simd::for_each_vector<T>(end - begin, [&](std::int64_t i, const auto& io) {
      const Vec<T> g = io.load(d + i);
      io.store(gains + i, fused(g, (io.load(in + i) - m) * r, io.load(gains + i)));
      if (biases != nullptr) io.store(biases + i, io.load(biases + i) + g);
    });
  }
};

// A leaf a thread, both halves of a row at once; with fewer leaves than threads the rows of dx and
// the columns of the sums are shared instead: the same chains of additions.
template <typename S>
void backward_rows(const NormBackward<S>& kernel, std::int64_t N, std::int64_t leaf,
                   bool need_gain) {
  const std::int64_t D = kernel.D, leaves = leaf == 0 ? 0 : N / leaf;
  if (need_gain && leaves >= num_threads()) {
    parallel_ranges(leaves, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin * leaf; n < end * leaf; ++n) {
        kernel.input_row(n);
        kernel.weight_row(n, n / leaf, 0, D);
      }
    });
    return;
  }
  parallel_ranges(N, row_grain(D), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) kernel.input_row(n);
  });
  if (!need_gain) return;
  const std::int64_t blocks = (D + 63) / 64;
  parallel_ranges(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = 0; n < N; ++n)
      kernel.weight_row(n, n / leaf, begin * 64, std::min(end * 64, D));
  });
}

}  // namespace

NormOut norm_forward(at::Tensor& x, const at::Tensor& residual, const at::Tensor& gain_D,
                     const at::Tensor& bias_D, double eps, bool centred) {
  check_vectors(x, gain_D, bias_D);
  CHECK(!residual.defined() ||
            (residual.sizes() == x.sizes() && residual.scalar_type() == x.scalar_type()),
        "norm: the residual is not like x");
  const std::int64_t N = num_rows(x);
  const at::ScalarType type = wide(x.scalar_type());
  NormOut out{x.new_empty(x.sizes()), x.new_empty({N}, type), {}};
  if (centred || bias_D.defined()) out.mean = x.new_empty({N}, type);
  dispatch(x.scalar_type(), [&](auto tag) {
    forward_rows<typename decltype(tag)::type>(x, residual, gain_D, bias_D, eps, out);
  });
  return out;
}

at::Tensor norm_apply(const at::Tensor& x, const at::Tensor& gain_D, const at::Tensor& bias_D,
                      const at::Tensor& mean_N, const at::Tensor& rstd_N) {
  check_vectors(x, gain_D, bias_D);
  CHECK(rstd_N.numel() == num_rows(x), "norm_apply: {} rows, {} kept", num_rows(x), rstd_N.numel());
  at::Tensor y = x.new_empty(x.sizes());
  dispatch(x.scalar_type(), [&](auto tag) {
    apply_rows<typename decltype(tag)::type>(x, gain_D, bias_D, mean_N, rstd_N, y);
  });
  return y;
}

NormGrads norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean_N,
                        const at::Tensor& rstd_N, const at::Tensor& gain_D, bool has_bias,
                        const at::Tensor& residual_grad, std::int64_t leaf, bool need_gain) {
  check_vectors(x, gain_D, {});
  const std::int64_t N = num_rows(x), D = x.size(-1);
  CHECK(dy.sizes() == x.sizes() && dy.scalar_type() == x.scalar_type() &&
            (!residual_grad.defined() || (residual_grad.sizes() == x.sizes() &&
                                          residual_grad.scalar_type() == x.scalar_type())),
        "norm_backward: a gradient is not like x");
  CHECK(!need_gain || N == 0 || (leaf > 0 && N % leaf == 0), "norm_backward: {} rows, leaves of {}",
        N, leaf);
  CHECK(!has_bias || mean_N.defined(), "norm_backward: a bias without a mean");
  const auto sums = [&] { return x.new_zeros({N == 0 ? 0 : N / leaf, D}, wide(x.scalar_type())); };
  NormGrads out{x.new_empty(x.sizes()), need_gain ? sums() : at::Tensor(),
                need_gain && has_bias ? sums() : at::Tensor()};
  dispatch(x.scalar_type(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    using T = Wide<S>;
    NormBackward<S> kernel;
    kernel.D = D;
    kernel.dy = rows_of<S>(dy);
    kernel.x = rows_of<S>(x);
    kernel.has_residual = residual_grad.defined();
    kernel.residual_grad = rows_of<S>(kernel.has_residual ? residual_grad : dy);
    kernel.dx = mutable_rows_of<S>(out.dx);
    kernel.mean = data_or_null<T>(mean_N);
    kernel.rstd = data<T>(rstd_N);
    kernel.gain = data<S>(gain_D);
    kernel.dgain = out.dgain_LD.defined() ? mutable_data<T>(out.dgain_LD) : nullptr;
    kernel.dbias = out.dbias_LD.defined() ? mutable_data<T>(out.dbias_LD) : nullptr;
    backward_rows<S>(kernel, N, leaf, need_gain);
  });
  return out;
}

}  // namespace quatrain::kernels
