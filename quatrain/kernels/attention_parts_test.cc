// SPDX-License-Identifier: Apache-2.0
// Attention over blocks of the keys, merged, against attention over all of them.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quatrain/base/error.h"
#include "quatrain/kernels/attention.h"
#include "quatrain/kernels/flops.h"

namespace quatrain::kernels {
namespace {

struct Case {
  std::int64_t B, T, H, K, d, dv;
  std::int64_t window = 0;
  std::vector<std::int64_t> documents = {};  // lengths; sum is T
  std::vector<std::int64_t> cuts = {};       // of [0, T)
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {2, 40, 2, 2, 16, 16, 0, {}, {10, 20, 30}},
      {1, 200, 4, 2, 24, 40, 0, {}, {67, 131}},
      {1, 200, 4, 2, 16, 16, 50, {}, {50, 100, 150}},
      {2, 150, 2, 1, 16, 16, 3, {}, {1, 70, 70, 149}},
      {1, 150, 4, 2, 16, 16, 0, {20, 85, 45}, {40, 75, 110}},
      {2, 150, 4, 2, 16, 16, 33, {20, 85, 45}, {40, 75, 110}},
  };
  return all;
}

struct Inputs {
  at::Tensor q, k, v, dout;
  AttentionMask mask;
  double scale;
};

Inputs make(const Case& c, at::ScalarType dtype) {
  const auto draw = [&](std::int64_t heads, std::int64_t width) {
    return at::randn({c.B, c.T, heads, width}, at::kDouble).to(dtype);
  };
  Inputs in{draw(c.H, c.d),  draw(c.K, c.d), draw(c.K, c.dv),
            draw(c.H, c.dv), {c.window},     1.3 / std::sqrt(static_cast<double>(c.d))};
  std::vector<at::Tensor> ids;
  for (std::size_t i = 0; i < c.documents.size(); ++i) {
    ids.push_back(at::full({c.B, c.documents[i]}, static_cast<std::int64_t>(i), at::kLong));
  }
  if (!ids.empty()) in.mask.documents_BS = at::cat(ids, 1);
  return in;
}

struct Block {
  std::int64_t begin, size;
  at::Tensor of(const at::Tensor& x) const { return x.narrow(1, begin, size); }
};
std::vector<Block> blocks(const Case& c) {
  std::vector<std::int64_t> ends = c.cuts;
  ends.push_back(c.T);
  std::vector<Block> all;
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    all.push_back({begin, end - begin});
    begin = end;
  }
  return all;
}

AttentionMask mask_of(const Inputs& in, const Block& queries, const Block& keys) {
  AttentionMask mask{.window = in.mask.window, .first_query = queries.begin - keys.begin};
  if (in.mask.documents_BS.defined()) {
    mask.documents_BS = keys.of(in.mask.documents_BS);
    mask.documents_BT = queries.of(in.mask.documents_BS);
  }
  return mask;
}

struct Results {
  at::Tensor out, lse, dq, dk, dv;
};

Results whole(const Inputs& in) {
  const AttentionOut f = attention(in.q, in.k, in.v, in.scale, in.mask);
  Results r{f.out_BTHd, f.lse_BHT, at::empty_like(in.q), at::empty_like(in.k),
            at::empty_like(in.v)};
  attention_backward(in.dout, in.q, in.k, in.v, f, in.scale, in.mask, r.dq, r.dk, r.dv);
  return r;
}

// Latest keys first: the order of merging must not matter.
Results by_blocks(const Case& c, const Inputs& in) {
  Results r;
  const at::ScalarType wide = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  r.dq = at::zeros_like(in.q, wide);
  r.dk = at::zeros_like(in.k, wide);
  r.dv = at::zeros_like(in.v, wide);
  std::vector<at::Tensor> outs, lses;
  const std::vector<Block> all = blocks(c);
  for (std::size_t q = 0; q < all.size(); ++q) {
    const Block& queries = all[q];
    AttentionOut merged;
    for (std::size_t k = q + 1; k-- > 0;) {
      const AttentionOut part = attention_part(queries.of(in.q), all[k].of(in.k), all[k].of(in.v),
                                               in.scale, mask_of(in, queries, all[k]));
      if (merged.out_BTHd.defined()) {
        merge_attention(merged, part);
      } else {
        merged = part;
      }
    }
    outs.push_back(merged.out_BTHd.to(in.q.scalar_type()));
    lses.push_back(merged.lse_BHT);
    for (std::size_t k = 0; k <= q; ++k) {
      at::Tensor dq = at::full_like(queries.of(in.q), NAN),
                 dk = at::full_like(all[k].of(in.k), NAN), dv = at::full_like(all[k].of(in.v), NAN);
      attention_backward(queries.of(in.dout), queries.of(in.q), all[k].of(in.k), all[k].of(in.v),
                         {outs.back(), lses.back()}, in.scale, mask_of(in, queries, all[k]), dq, dk,
                         dv);
      queries.of(r.dq).add_(dq);
      all[k].of(r.dk).add_(dk);
      all[k].of(r.dv).add_(dv);
    }
  }
  r.out = at::cat(outs, 1);
  r.lse = at::cat(lses, 2);
  return r;
}

void expect_close(const Results& a, const Results& b, double bound) {
  const auto one = [&](const at::Tensor& x, const at::Tensor& y, const char* what) {
    const at::Tensor p = x.to(at::kDouble), q = y.to(at::kDouble);
    EXPECT_FALSE(p.isnan().any().item<bool>()) << what;
    EXPECT_LE(p.sub(q).abs().max().item<double>(), bound * q.abs().max().item<double>()) << what;
  };
  one(a.out, b.out, "out");
  one(a.lse, b.lse, "lse");
  one(a.dq, b.dq, "dq");
  one(a.dk, b.dk, "dk");
  one(a.dv, b.dv, "dv");
}

TEST(AttentionParts, MergedEqualTheWhole) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message()
                 << "T" << c.T << " window " << c.window << " documents " << c.documents.size());
    const Inputs exact = make(c, at::kDouble);
    expect_close(by_blocks(c, exact), whole(exact), 1e-13);
    const Inputs half = make(c, at::kBFloat16);
    expect_close(by_blocks(c, half), whole(half), 2e-2);
  }
}

// Pairs are computed and counted once, whatever the blocks.
TEST(AttentionParts, ComputeEveryPairOnce) {
  for (const Case& c : cases()) {
    const Inputs in = make(c, at::kFloat);
    std::int64_t pairs = 0;
    for (const Block& queries : blocks(c)) {
      for (const Block& keys : blocks(c)) {
        if (keys.begin > queries.begin) continue;
        pairs += visible_pairs(c.B, queries.size, keys.size, mask_of(in, queries, keys));
      }
    }
    EXPECT_EQ(pairs, visible_pairs(c.B, c.T, c.T, in.mask));
    FlopCounter counter;
    const ScopedFlopCounter scope(&counter);
    by_blocks(c, in);
    EXPECT_EQ(counter.total(), pairs * c.H * 6 * (c.d + c.dv));
  }
}

TEST(AttentionParts, QueriesThatSeeNoKeyWeighNothing) {
  const Case c{1, 8, 1, 1, 4, 4};
  const Inputs in = make(c, at::kDouble);
  const AttentionMask mask{.window = 2, .first_query = 8};  // the first query sees key 7 alone
  AttentionOut part = attention_part(in.q, in.k, in.v, in.scale, mask);
  EXPECT_TRUE(part.out_BTHd.narrow(1, 0, 1).equal(in.v.narrow(1, 7, 1)));
  EXPECT_EQ(part.out_BTHd.narrow(1, 1, 7).abs().max().item<double>(), 0.0);
  EXPECT_EQ(part.lse_BHT.narrow(2, 1, 7).max().item<double>(),
            -std::numeric_limits<double>::infinity());
  const AttentionOut own = attention_part(in.q, in.k, in.v, in.scale, {});
  AttentionOut merged{own.out_BTHd.clone(), own.lse_BHT.clone()};
  merge_attention(merged, part);
  EXPECT_TRUE(merged.out_BTHd.narrow(1, 1, 7).equal(own.out_BTHd.narrow(1, 1, 7)));
  merge_attention(part, own);
  EXPECT_TRUE(part.lse_BHT.equal(merged.lse_BHT));
}

TEST(AttentionParts, DocumentsOfQueriesComeWithTheirPlace) {
  Inputs in = make({1, 8, 1, 1, 4, 4, 0, {4, 4}}, at::kFloat);
  in.mask.first_query = 8;
  EXPECT_THROW(attention_part(in.q, in.k, in.v, in.scale, in.mask), BugError);
  in.mask.documents_BT = in.mask.documents_BS;
  EXPECT_NO_THROW(attention_part(in.q, in.k, in.v, in.scale, in.mask));
}

}  // namespace
}  // namespace quatrain::kernels
