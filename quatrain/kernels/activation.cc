// SPDX-License-Identifier: Apache-2.0
// SwiGLU (Shazeer, arXiv:2002.05202, eq. 5) and GELU (Hendrycks & Gimpel, arXiv:1606.08415),
// forward and backward. Backward returns the activation again, by the code of forward.
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

constexpr std::int64_t kGrain = 16384;  // elements that are worth a thread

// A function's value and derivative.
template <typename T>
struct Point {
  Vec<T> y, dy;
};

// silu(x) = x sigmoid(x); with s = sigmoid(x) = 1 / (1 + e), e = e^-x, 1 - s is e s exactly.
template <typename T>
Point<T> silu(Vec<T> x) {
  const Vec<T> e = simd::exp_of_minus<T>(x);
  const Vec<T> s = T(1) / (e + T(1));
  return {x * s, s * fused(x, e * s, splat(T(1)))};
}

// 0.5 x (1 + tanh(u)) is x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename T>
struct GeluTanh {
  static Point<T> at(Vec<T> x) {
    constexpr T factor = T(1.59576912160573071176);  // 2 sqrt(2 / pi)
    constexpr T cubic = T(0.044715);
    const Vec<T> square = x * x;
    const Vec<T> z = x * factor * fused(square, splat(cubic), splat(T(1)));
    const Vec<T> dz = factor * fused(square, splat(3 * cubic), splat(T(1)));
    const Vec<T> e = simd::exp_of_minus<T>(z);
    const Vec<T> s = T(1) / (e + T(1));
    return {x * s, s * fused(x * dz, e * s, splat(T(1)))};
  }
};

// erfc(a) = t e^(-a^2) C(2 t - 1) for a >= 0, t = 1 / (1 + a / 2): the Chebyshev coefficients of C,
// computed to 50 digits. 25 of them reach 1e-15, the first 13 reach 1e-8.
constexpr double kErfc[] = {
    0.577033738616469689,     0.355436921270498487,     0.0650951588287865246,
    0.00367114239583663917,   -0.0011128447433526325,   -0.000160758299153780798,
    0.0000327803157417313706, 5.44244164550501603e-6,   -1.51546655531714816e-6,
    -1.42976081811698649e-7,  8.23460882741949343e-8,   -1.29628468523065625e-9,
    -4.1547216310151983e-9,   6.34705827836281118e-10,  1.43208227122562237e-10,
    -6.16039010520458554e-11, 2.06121385547216963e-12,  3.57149314884770445e-12,
    -8.58642284325179648e-13, -6.14560021379063055e-14, 7.41872574859661706e-14,
    -1.28950427550323256e-14, -2.35872638571063236e-15, 1.57293493816859114e-15,
    -2.27829662395464652e-16};

template <typename T>
Vec<T> erfc_times_exp_square(Vec<T> a) {
  constexpr int terms = std::is_same_v<T, double> ? 25 : 13;
  const Vec<T> t = T(1) / fused(a, splat(T(0.5)), splat(T(1)));
  const Vec<T> u = fused(t, splat(T(2)), splat(T(-1)));
  Vec<T> next{}, sum{};  // Clenshaw's recurrence
  for (int i = terms - 1; i > 0; --i) {
    const Vec<T> previous = sum;
    sum = fused(u + u, sum, static_cast<T>(kErfc[i]) - next);
    next = previous;
  }
  return t * fused(u, sum, static_cast<T>(kErfc[0]) - next);
}

// x Phi(x), Phi the normal distribution function.
template <typename T>
struct GeluErf {
  static Point<T> at(Vec<T> x) {
    constexpr T sqrt_half = T(0.70710678118654752440);
    constexpr T density = T(0.39894228040143267794);  // 1 / sqrt(2 pi)
    const Vec<T> positive = simd::max(x, -x);
    const Vec<T> gauss = simd::exp<T>(x * x * T(-0.5));
    const Vec<T> tail = T(0.5) * gauss * erfc_times_exp_square<T>(positive * sqrt_half);
    const Vec<T> phi = x > Vec<T>{} ? T(1) - tail : tail;
    return {x * phi, fused(x * density, gauss, phi)};
  }
};

// Rows of x, [N, width], the last dim contiguous.
template <typename S>
struct Rows {
  S* data;
  std::int64_t stride;
  S* at(std::int64_t row) const { return data + row * stride; }
};
template <typename S>
Rows<const S> rows(const at::Tensor& x) {
  return {data<S>(x), x.stride(0)};
}
template <typename S>
Rows<S> mutable_rows(const at::Tensor& x) {
  return {mutable_data<S>(x), x.stride(0)};
}

void check_rows(const at::Tensor& x, const char* what) {
  CHECK(x.dim() == 2 && (x.size(1) <= 1 || x.stride(1) == 1),
        "{}: a matrix with contiguous rows is needed", what);
}

template <typename Body>
void for_rows(std::int64_t n, std::int64_t width, const Body& body) {
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, width));
  parallel_ranges(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

template <typename S, typename Function>
void gelu_rows(const at::Tensor& x_NF, const at::Tensor& y_NF) {
  using T = Wide<S>;
  const auto x = rows<S>(x_NF);
  const auto y = mutable_rows<S>(y_NF);
  const std::int64_t F = x_NF.size(1);
  for_rows(x_NF.size(0), F, [&](std::int64_t row) {
    simd::for_each_vector<T>(F, [&](std::int64_t i, const auto& io) {
      io.store(y.at(row) + i, Function::at(io.load(x.at(row) + i)).y);
    });
  });
}

template <typename S, typename Function>
void gelu_backward_rows(const at::Tensor& dact_NF, const at::Tensor& x_NF,
                        const ActivationGrads& out) {
  using T = Wide<S>;
  const auto dact = rows<S>(dact_NF), x = rows<S>(x_NF);
  const auto dx = mutable_rows<S>(out.dx), act = mutable_rows<S>(out.act);
  const std::int64_t F = x_NF.size(1);
  for_rows(x_NF.size(0), F, [&](std::int64_t row) {
    simd::for_each_vector<T>(F, [&](std::int64_t i, const auto& io) {
      const Point<T> point = Function::at(io.load(x.at(row) + i));
      io.store(act.at(row) + i, point.y);
      io.store(dx.at(row) + i, io.load(dact.at(row) + i) * point.dy);
    });
  });
}

template <typename S>
void swiglu_rows(const at::Tensor& gate_up, const at::Tensor& y_NF) {
  using T = Wide<S>;
  const auto x = rows<S>(gate_up);
  const auto y = mutable_rows<S>(y_NF);
  const std::int64_t F = y_NF.size(1);
  for_rows(y_NF.size(0), F, [&](std::int64_t row) {
    const S *gate = x.at(row), *up = gate + F;
    simd::for_each_vector<T>(F, [&](std::int64_t i, const auto& io) {
      io.store(y.at(row) + i, silu<T>(io.load(gate + i)).y * io.load(up + i));
    });
  });
}

template <typename S>
void swiglu_backward_rows(const at::Tensor& dact_NF, const at::Tensor& gate_up,
                          const ActivationGrads& out) {
  using T = Wide<S>;
  const auto dact = rows<S>(dact_NF), x = rows<S>(gate_up);
  const auto dx = mutable_rows<S>(out.dx), act = mutable_rows<S>(out.act);
  const std::int64_t F = dact_NF.size(1);
  for_rows(dact_NF.size(0), F, [&](std::int64_t row) {
    const S *gate = x.at(row), *up = gate + F;
    S *dgate = dx.at(row), *dup = dgate + F;
    simd::for_each_vector<T>(F, [&](std::int64_t i, const auto& io) {
      const Point<T> point = silu<T>(io.load(gate + i));
      const Vec<T> above = io.load(dact.at(row) + i), u = io.load(up + i);
      io.store(act.at(row) + i, point.y * u);
      io.store(dup + i, above * point.y);
      io.store(dgate + i, above * u * point.dy);
    });
  });
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up_N2F) {
  check_rows(gate_up_N2F, "swiglu");
  CHECK(gate_up_N2F.size(1) % 2 == 0, "swiglu: {} columns are no pairs", gate_up_N2F.size(1));
  at::Tensor y = gate_up_N2F.new_empty({gate_up_N2F.size(0), gate_up_N2F.size(1) / 2});
  dispatch(y.scalar_type(),
           [&](auto tag) { swiglu_rows<typename decltype(tag)::type>(gate_up_N2F, y); });
  return y;
}

ActivationGrads swiglu_backward(const at::Tensor& dact_NF, const at::Tensor& gate_up_N2F) {
  check_rows(dact_NF, "swiglu_backward");
  check_rows(gate_up_N2F, "swiglu_backward");
  CHECK(gate_up_N2F.size(0) == dact_NF.size(0) && gate_up_N2F.size(1) == 2 * dact_NF.size(1) &&
            gate_up_N2F.scalar_type() == dact_NF.scalar_type(),
        "swiglu_backward: the gradient does not fit the input");
  ActivationGrads out{gate_up_N2F.new_empty(gate_up_N2F.sizes()),
                      dact_NF.new_empty(dact_NF.sizes())};
  dispatch(dact_NF.scalar_type(), [&](auto tag) {
    swiglu_backward_rows<typename decltype(tag)::type>(dact_NF, gate_up_N2F, out);
  });
  return out;
}

at::Tensor gelu(const at::Tensor& x_NF, bool tanh_form) {
  check_rows(x_NF, "gelu");
  at::Tensor y = x_NF.new_empty(x_NF.sizes());
  dispatch(y.scalar_type(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    if (tanh_form)
      gelu_rows<S, GeluTanh<Wide<S>>>(x_NF, y);
    else
      gelu_rows<S, GeluErf<Wide<S>>>(x_NF, y);
  });
  return y;
}

ActivationGrads gelu_backward(const at::Tensor& dact_NF, const at::Tensor& x_NF, bool tanh_form) {
  check_rows(dact_NF, "gelu_backward");
  check_rows(x_NF, "gelu_backward");
  CHECK(x_NF.sizes() == dact_NF.sizes() && x_NF.scalar_type() == dact_NF.scalar_type(),
        "gelu_backward: the gradient does not fit the input");
  ActivationGrads out{x_NF.new_empty(x_NF.sizes()), x_NF.new_empty(x_NF.sizes())};
  dispatch(x_NF.scalar_type(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    if (tanh_form)
      gelu_backward_rows<S, GeluTanh<Wide<S>>>(dact_NF, x_NF, out);
    else
      gelu_backward_rows<S, GeluErf<Wide<S>>>(dact_NF, x_NF, out);
  });
  return out;
}

}  // namespace quatrain::kernels
