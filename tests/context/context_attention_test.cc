// SPDX-License-Identifier: Apache-2.0
// Attention over shared sequences, alone: outputs and gradients of every style against one rank's,
// in float64, over masks, heads and lengths.
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <mutex>

#include "quatrain/comm/thread/thread.h"
#include "quatrain/kernels/flops.h"
#include "quatrain/nn/context_parallel.h"

namespace quatrain {
namespace {

struct Heads {
  std::int64_t q, kv, d, dv;
};
constexpr Heads kMha{8, 8, 6, 6}, kGqa{8, 2, 6, 6}, kLatent{8, 8, 6, 4};

struct Question {
  QkvHeads x;
  at::Tensor dout;
  ContextMask mask;
};

enum class Masked { kCausal, kWindow, kPacked };

Question draw(const Heads& heads, Masked masked, std::int64_t seq) {
  const std::int64_t batch = 2;
  const auto random = [&](std::int64_t count, std::int64_t width) {
    return at::randn({batch, seq, count, width}, at::kDouble);
  };
  Question p{{random(heads.q, heads.d), random(heads.kv, heads.d), random(heads.kv, heads.dv)},
             random(heads.q, heads.dv),
             {.seq = seq, .scale = 0.7}};
  if (masked == Masked::kWindow) p.mask.window = 5;
  if (masked == Masked::kPacked) {
    p.mask.documents_BS =
        at::arange(seq, at::kLong).floor_divide(7).unsqueeze(0).expand({batch, seq}).contiguous();
  }
  return p;
}

struct Answer {
  at::Tensor out, dq, dk, dv;
};

// On one rank of a style, of its own tokens.
Answer answer(const Question& p, const ContextParallel& cp) {
  const QkvHeads x{cp.own(p.x.q, 1), cp.own(p.x.k, 1), cp.own(p.x.v, 1)};
  const ContextParallel::Attended forward = cp.forward(x, p.mask);
  QkvHeads grads{at::empty_like(x.q), at::empty_like(x.k), at::empty_like(x.v)};
  for (at::Tensor* g : {&grads.q, &grads.k, &grads.v}) g->fill_(NAN);
  const QkvHeads given = cp.exchanges() ? QkvHeads{} : x;
  cp.backward(cp.own(p.dout, 1), given, forward, p.mask, grads);
  return {forward.out_BTHd, grads.q, grads.k, grads.v};
}

Answer one_rank(const Question& p) {
  const kernels::AttentionMask mask{p.mask.window, p.mask.documents_BS};
  const kernels::AttentionOut f = kernels::attention(p.x.q, p.x.k, p.x.v, p.mask.scale, mask);
  Answer a{f.out_BTHd, at::empty_like(p.x.q), at::empty_like(p.x.k), at::empty_like(p.x.v)};
  kernels::attention_backward(p.dout, p.x.q, p.x.k, p.x.v, f, p.mask.scale, mask, a.dq, a.dk, a.dv);
  return a;
}

std::vector<ContextSplit> splits(const Heads& heads) {
  std::vector<ContextSplit> all;
  for (const int degree : {2, 3, 4, 8}) {
    for (const bool zigzag : {true, false}) {
      all.push_back({.degree = degree, .zigzag = zigzag});
      all.push_back({.degree = degree, .gathers = true, .zigzag = zigzag});
      for (const int shared : {2, 4, 8}) {
        const bool even = heads.kv % shared == 0 || shared % heads.kv == 0;
        if (degree % shared == 0 && heads.q % shared == 0 && even) {
          all.push_back({.degree = degree, .heads = shared, .zigzag = zigzag});
        }
      }
    }
  }
  return all;
}

std::string name(const ContextSplit& s) {
  return fmt::format("cp {} heads {} {} {}", s.degree, s.heads, s.gathers ? "gathered" : "ring",
                     s.zigzag ? "zigzag" : "contiguous");
}

double worst(const at::Tensor& got, const at::Tensor& want) {
  if (got.isnan().any().item<bool>()) return INFINITY;
  const double size = want.abs().max().item<double>();
  return got.numel() == 0 ? 0.0 : got.sub(want).abs().max().item<double>() / size;
}

void on_ranks(int ranks, const std::function<void(Communicator& world)>& f) {
  run_thread_ranks(ranks, {}, [&](const std::unique_ptr<Communicator>& world) {
    at::set_num_threads(1);
    f(*world);
  });
}

void expect_the_answer(const Question& p, const Answer& want, ContextSplit split) {
  std::mutex lock;
  std::vector<double> errors;
  on_ranks(split.degree, [&](Communicator& world) {
    ContextSplit own = split;
    own.rank = world.rank();
    const ContextParallel cp(world, own);
    const Answer got = answer(p, cp);
    const std::scoped_lock guard(lock);
    errors.push_back(worst(got.out, cp.own(want.out, 1)));
    errors.push_back(worst(got.dq, cp.own(want.dq, 1)));
    errors.push_back(worst(got.dk, cp.own(want.dk, 1)));
    errors.push_back(worst(got.dv, cp.own(want.dv, 1)));
  });
  for (const double error : errors) EXPECT_LE(error, 1e-12) << name(split);
}

TEST(ContextAttention, case_007_EveryStyleEqualsOneRank) {
  for (const Heads& heads : {kMha, kGqa, kLatent}) {
    for (const Masked masked : {Masked::kCausal, Masked::kWindow, Masked::kPacked}) {
      for (const std::int64_t seq : {32, 37}) {
        SCOPED_TRACE(
            fmt::format("kv heads {}, mask {}, seq {}", heads.kv, static_cast<int>(masked), seq));
        const Question p = draw(heads, masked, seq);
        const Answer want = one_rank(p);
        for (const ContextSplit& split : splits(heads)) expect_the_answer(p, want, split);
      }
    }
  }
}

// sum(out * dout) over all ranks of a style.
double objective(const Question& p, const ContextSplit& split) {
  std::mutex lock;
  double sum = 0.0;
  on_ranks(split.degree, [&](Communicator& world) {
    ContextSplit own = split;
    own.rank = world.rank();
    const ContextParallel cp(world, own);
    const QkvHeads x{cp.own(p.x.q, 1), cp.own(p.x.k, 1), cp.own(p.x.v, 1)};
    const double part = cp.forward(x, p.mask).out_BTHd.mul(cp.own(p.dout, 1)).sum().item<double>();
    const std::scoped_lock guard(lock);
    sum += part;
  });
  return sum;
}

TEST(ContextAttention, case_007_TwentyEntriesByFiniteDifferences) {
  constexpr double kStep = 1e-5;
  Question p = draw(kGqa, Masked::kPacked, 24);
  const Answer want = one_rank(p);
  const std::vector<ContextSplit> all = {{.degree = 2},
                                         {.degree = 4},
                                         {.degree = 2, .gathers = true},
                                         {.degree = 2, .heads = 2},
                                         {.degree = 4, .heads = 2}};
  for (int i = 0; i < 20; ++i) {
    const auto [x, dx] = i % 3 == 0   ? std::pair{p.x.q, want.dq}
                         : i % 3 == 1 ? std::pair{p.x.k, want.dk}
                                      : std::pair{p.x.v, want.dv};
    const std::int64_t at = (i * 7919) % x.numel();
    const at::Tensor entry = x.view({-1})[at];
    const double before = entry.item<double>();
    const ContextSplit& split = all[static_cast<std::size_t>(i) % all.size()];
    entry.fill_(before + kStep);
    const double above = objective(p, split);
    entry.fill_(before - kStep);
    const double below = objective(p, split);
    entry.fill_(before);
    EXPECT_NEAR((above - below) / (2 * kStep), dx.reshape({-1})[at].item<double>(), 1e-7)
        << name(split) << ", entry " << at;
  }
}

// Not even a NaN crosses from one document to another, whatever rank holds them.
TEST(ContextAttention, case_107_DocumentsDoNotSeeEachOther) {
  constexpr std::int64_t kFirst = 7;  // tokens of the first document
  for (const Heads& heads : {kMha, kGqa, kLatent}) {
    const Question p = draw(heads, Masked::kPacked, 37);
    Question poisoned = p;
    for (at::Tensor* x : {&poisoned.x.q, &poisoned.x.k, &poisoned.x.v, &poisoned.dout}) {
      *x = x->clone();
      x->narrow(1, 0, kFirst).fill_(NAN);
    }
    const at::Tensor others = at::arange(37).ge(kFirst).unsqueeze(0);
    for (const ContextSplit& split : splits(heads)) {
      on_ranks(split.degree, [&](Communicator& world) {
        ContextSplit own = split;
        own.rank = world.rank();
        const ContextParallel cp(world, own);
        const at::Tensor seen = cp.own(others, 1).nonzero().select(1, 1);
        const Answer want = answer(p, cp), got = answer(poisoned, cp);
        for (const auto part : {&Answer::out, &Answer::dq, &Answer::dk, &Answer::dv}) {
          EXPECT_TRUE((got.*part).index_select(1, seen).equal((want.*part).index_select(1, seen)))
              << name(split) << ", kv heads " << heads.kv;
        }
      });
    }
  }
}

// No pair that the mask hides is computed, none twice, and zigzag shares them evenly.
TEST(ContextAttention, PairsAreComputedOnceAndEvenly) {
  for (const Masked masked : {Masked::kCausal, Masked::kWindow, Masked::kPacked}) {
    const Question p = draw(kGqa, masked, 96);
    const std::int64_t pairs =
        kernels::visible_pairs(2, 96, 96, {p.mask.window, p.mask.documents_BS});
    for (const ContextSplit& split : splits(kGqa)) {
      std::mutex lock;
      std::int64_t all = 0, most = 0;
      on_ranks(split.degree, [&](Communicator& world) {
        ContextSplit own = split;
        own.rank = world.rank();
        const ContextParallel cp(world, own);
        FlopCounter counter;
        const ScopedFlopCounter scope(&counter);
        answer(p, cp);
        const std::scoped_lock guard(lock);
        all += counter.total();
        most = std::max(most, counter.total());
      });
      EXPECT_EQ(all, pairs * 8 * 6 * (6 + 6)) << name(split);
      if (masked == Masked::kCausal && split.zigzag) {
        EXPECT_EQ(most * split.degree, all) << name(split);
      }
    }
  }
}

}  // namespace
}  // namespace quatrain
