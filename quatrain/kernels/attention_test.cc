// SPDX-License-Identifier: Apache-2.0
// Blocked attention against the plain one under autograd, and the rules of its bits.
#include "quatrain/kernels/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quatrain/base/error.h"
#include "quatrain/kernels/flops.h"
#include "quatrain/kernels/memory.h"

namespace quatrain::kernels {
namespace {

struct Case {
  std::int64_t B, T, S, H, K, d, dv;
  std::int64_t window = 0;
  std::vector<std::int64_t> documents = {};  // lengths, in every sequence; sum is S
};

struct Inputs {
  at::Tensor q, k, v, dout;
  AttentionMask mask;
  double scale;
};

at::Tensor document_ids(std::int64_t batch, const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> ids;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    ids.insert(ids.end(), static_cast<std::size_t>(lengths[i]), static_cast<std::int64_t>(3 * i));
  const auto keys = static_cast<std::int64_t>(ids.size());
  return at::tensor(ids).view({1, keys}).expand({batch, keys}).contiguous();
}

Inputs make(const Case& c, at::ScalarType dtype) {
  Inputs in{at::randn({c.B, c.T, c.H, c.d}, at::kDouble).to(dtype),
            at::randn({c.B, c.S, c.K, c.d}, at::kDouble).to(dtype),
            at::randn({c.B, c.S, c.K, c.dv}, at::kDouble).to(dtype),
            at::randn({c.B, c.T, c.H, c.dv}, at::kDouble).to(dtype),
            {c.window, {}},
            1.3 / std::sqrt(static_cast<double>(c.d))};
  if (!c.documents.empty()) in.mask.documents_BS = document_ids(c.B, c.documents);
  return in;
}

struct Results {
  at::Tensor out, lse, dq, dk, dv;
  std::vector<at::Tensor> all() const { return {out, lse, dq, dk, dv}; }
};

at::Tensor poisoned_like(const at::Tensor& x) {
  return at::full(x.sizes(), std::numeric_limits<double>::quiet_NaN(), x.options());
}

Results run(const Inputs& in) {
  const AttentionOut f = attention(in.q, in.k, in.v, in.scale, in.mask);
  Results r{f.out_BTHd, f.lse_BHT, poisoned_like(in.q), poisoned_like(in.k), poisoned_like(in.v)};
  attention_backward(in.dout, in.q, in.k, in.v, f, in.scale, in.mask, r.dq, r.dk, r.dv);
  return r;
}

// The reference in float64, from the same (rounded) inputs.
Results oracle(const Inputs& in) {
  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).clone().requires_grad_(); };
  const at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const AttentionOut f = attention_reference(q, k, v, in.scale, in.mask);
  f.out_BTHd.mul(in.dout.to(at::kDouble)).sum().backward();
  return {f.out_BTHd.detach(), f.lse_BHT.detach(), q.grad(), k.grad(), v.grad()};
}

double relative(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  if (x.isnan().any().item<bool>()) return std::numeric_limits<double>::infinity();
  const double size = y.abs().max().item<double>();
  const double error = x.sub(y).abs().max().item<double>();
  return size == 0.0 ? error : error / size;
}

void expect_close(const Results& a, const Results& b, double bound) {
  const char* names[] = {"out", "lse", "dq", "dk", "dv"};
  for (std::size_t i = 0; i < 5; ++i)
    EXPECT_LT(relative(a.all()[i], b.all()[i]), bound) << names[i];
}

void expect_equal(const Results& a, const Results& b) {
  const char* names[] = {"out", "lse", "dq", "dk", "dv"};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(a.all()[i].equal(b.all()[i])) << names[i];
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {1, 1, 1, 1, 1, 1, 1},
      {2, 7, 7, 2, 1, 5, 3},
      {2, 64, 64, 2, 2, 16, 16},
      {1, 65, 65, 4, 2, 64, 64},
      {2, 130, 130, 6, 2, 24, 40},
      {1, 200, 200, 2, 1, 64, 64, 50},
      {1, 200, 200, 2, 1, 8, 8, 1},
      {1, 150, 150, 2, 2, 32, 32, 64},
      {2, 150, 150, 4, 2, 16, 16, 0, {1, 70, 64, 15}},
      {1, 190, 190, 2, 1, 16, 24, 33, {100, 90}},
      {2, 1, 77, 4, 2, 64, 64},
      {1, 5, 133, 2, 2, 16, 16, 20},
      {2, 40, 120, 2, 1, 16, 16, 0, {30, 60, 30}},
      {1, 300, 300, 1, 1, 192, 128},
  };
  return all;
}

TEST(Attention, Float64EqualsAutograd) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message()
                 << "B" << c.B << " T" << c.T << " S" << c.S << " H" << c.H << " K" << c.K << " d"
                 << c.d << " dv" << c.dv << " w" << c.window);
    const Inputs in = make(c, at::kDouble);
    expect_close(run(in), oracle(in), 1e-12);
  }
}

TEST(Attention, Float32AndBf16StayWithinRounding) {
  for (const Case& c : cases()) {
    const Inputs single = make(c, at::kFloat);
    expect_close(run(single), oracle(single), 3e-6);
    const Inputs half = make(c, at::kBFloat16);
    expect_close(run(half), oracle(half), 1.2e-2);
  }
}

TEST(Attention, ThreadsDoNotChangeBits) {
  const int before = at::get_num_threads();
  for (const Case& c : cases()) {
    const Inputs in = make(c, at::kFloat);
    at::set_num_threads(1);
    const Results one = run(in);
    for (const int threads : {2, 4, 7}) {
      at::set_num_threads(threads);
      expect_equal(run(in), one);
    }
  }
  at::set_num_threads(before);
}

// A query's bits depend on its keys alone: not on the queries beside it, nor on later keys.
TEST(Attention, QueriesAloneHaveTheBitsOfTheWhole) {
  const Inputs in = make({2, 150, 150, 4, 2, 24, 40, 70}, at::kFloat);
  const AttentionOut whole = attention(in.q, in.k, in.v, in.scale, in.mask);
  for (const std::int64_t end : {1, 17, 64, 101, 150})
    for (const std::int64_t count : {1, 13}) {
      if (count > end) continue;
      const AttentionOut part =
          attention(in.q.narrow(1, end - count, count), in.k.narrow(1, 0, end),
                    in.v.narrow(1, 0, end), in.scale, in.mask);
      EXPECT_TRUE(part.out_BTHd.equal(whole.out_BTHd.narrow(1, end - count, count)));
      EXPECT_TRUE(part.lse_BHT.equal(whole.lse_BHT.narrow(2, end - count, count)));
    }
}

TEST(Attention, ViewsOfAFusedBufferEqualSeparateTensors) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const std::int64_t B = 2, T = 70, H = 4, K = 2, d = 16;
    Inputs in = make({B, T, T, H, K, d, d}, dtype);
    const Results separate = run(in);
    const auto split = [&](at::Tensor fused) {
      return std::vector<at::Tensor>{fused.narrow(2, 0, H), fused.narrow(2, H, K),
                                     fused.narrow(2, H + K, K)};
    };
    const at::Tensor fused = at::cat({in.q, in.k, in.v}, 2);
    const auto views = split(fused);
    at::Tensor gradient = poisoned_like(fused);
    auto grads = split(gradient);
    const AttentionOut f = attention(views[0], views[1], views[2], in.scale, in.mask);
    attention_backward(in.dout, views[0], views[1], views[2], f, in.scale, in.mask, grads[0],
                       grads[1], grads[2]);
    expect_equal({f.out_BTHd, f.lse_BHT, grads[0], grads[1], grads[2]}, separate);
    EXPECT_FALSE(gradient.isnan().any().item<bool>());
  }
}

// Not even a NaN crosses from one document to another, and packing changes no bit.
TEST(Attention, case_107_DocumentsDoNotSeeEachOther) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const std::vector<std::int64_t> lengths = {45, 83, 22};
    const Case c{2, 150, 150, 4, 2, 16, 16, 0, lengths};
    const Inputs in = make(c, dtype);
    const Results packed = run(in);
    Inputs poisoned = in;
    for (at::Tensor* x : {&poisoned.q, &poisoned.k, &poisoned.v, &poisoned.dout}) {
      *x = x->clone();
      x->narrow(1, 0, lengths[0]).fill_(std::numeric_limits<double>::quiet_NaN());
    }
    const Results after = run(poisoned);
    std::int64_t begin = 0;
    for (const std::int64_t length : lengths) {
      const auto cut = [&](const at::Tensor& x) { return x.narrow(1, begin, length); };
      const auto part = [&](const Results& r) {
        return Results{cut(r.out), r.lse.narrow(2, begin, length), cut(r.dq), cut(r.dk), cut(r.dv)};
      };
      const Inputs alone{cut(in.q), cut(in.k), cut(in.v), cut(in.dout), {}, in.scale};
      expect_equal(run(alone), part(packed));
      if (begin > 0) expect_equal(part(after), part(packed));
      begin += length;
    }
  }
}

TEST(Attention, CountsVisiblePairs) {
  const auto brute = [](const Case& c, const AttentionMask& mask) {
    std::int64_t pairs = 0;
    for (std::int64_t t = 0; t < c.T; ++t)
      for (std::int64_t j = 0; j <= t + c.S - c.T; ++j) {
        const std::int64_t i = t + c.S - c.T;
        const bool near = mask.window == 0 || i - j < mask.window;
        const bool same =
            !mask.documents_BS.defined() || mask.documents_BS[0][i].item<std::int64_t>() ==
                                                mask.documents_BS[0][j].item<std::int64_t>();
        pairs += near && same ? 1 : 0;
      }
    return pairs * c.B;
  };
  for (const Case& c : cases()) {
    const Inputs in = make(c, at::kFloat);
    const std::int64_t pairs = brute(c, in.mask);
    EXPECT_EQ(visible_pairs(c.B, c.T, c.S, in.mask), pairs);
    FlopCounter counter;
    const ScopedFlopCounter scope(&counter);
    const AttentionOut f = attention(in.q, in.k, in.v, in.scale, in.mask);
    EXPECT_EQ(counter.total(), pairs * c.H * 2 * (c.d + c.dv));
    at::Tensor dq = at::empty_like(in.q), dk = at::empty_like(in.k), dv = at::empty_like(in.v);
    counter.pass = PassKind::kBackwardInput;
    attention_backward(in.dout, in.q, in.k, in.v, f, in.scale, in.mask, dq, dk, dv);
    EXPECT_EQ(counter[PassKind::kBackwardInput], pairs * c.H * 4 * (c.d + c.dv));
  }
}

// Peak bytes while forward and backward run, beyond what was live before.
std::int64_t peak_bytes(std::int64_t T) {
  MemoryOwner owner;
  {
    const ScopedMemoryOwner scope(&owner);
    const Inputs in = make({1, T, T, 2, 1, 32, 32}, at::kFloat);
    owner.reset_peak();
    run(in);
  }
  return owner.peak().total();
}

TEST(Attention, MemoryGrowsLinearlyWithLength) {
  install_counting_allocator();
  const std::int64_t one = peak_bytes(512), two = peak_bytes(1024), four = peak_bytes(2048);
  EXPECT_GT(one, 0);
  EXPECT_LE(two, 2 * one);
  EXPECT_LE(four - two, 2 * (two - one) + (1 << 16));
}

TEST(Attention, RefusesWhatItCannotDo) {
  Inputs in = make({1, 8, 8, 4, 2, 16, 16, 0, {4, 4}}, at::kFloat);
  const auto call = [&](const at::Tensor& q) {
    return attention(q, in.k, in.v, in.scale, in.mask);
  };
  EXPECT_THROW(call(in.q.transpose(2, 3)), BugError);
  EXPECT_THROW(call(in.q.narrow(2, 0, 3)), BugError);
  EXPECT_THROW(call(in.q.to(at::kDouble)), BugError);
  EXPECT_THROW(call(at::cat({in.q, in.q}, 1)), BugError);
  in.mask.documents_BS = in.mask.documents_BS.flip(1);
  EXPECT_THROW(call(in.q), BugError);
}

}  // namespace
}  // namespace quatrain::kernels
