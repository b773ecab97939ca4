// SPDX-License-Identifier: Apache-2.0
// What shared sequences cost: the bytes of cost/, timed by hand.
#include "quatrain/planner/context_time.h"

#include <gmock/gmock.h>

#include "quatrain/planner/collective.h"
#include "quatrain/planner/explain.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

Job job_of(std::int64_t seq) {
  Job job;
  job.model = catalog_model("llama-3.1-8b").spec;
  job.cluster = cluster("h100-sxm-80gb");
  job.gpus = 64;
  job.seq = seq;
  job.global_batch = 64;
  return job;
}

Geometry shared(int cp, const ContextStyle& style) {
  Geometry g;
  g.cp = cp;
  g.cp_style = style;
  return g;
}

LayerTimes block_of(const Job& job, const Geometry& g) { return LayerTable(job).at(g).block[0]; }

// Bytes of keys and values of `tokens`: 8 heads of 128 each, in 16 bit.
double key_bytes(double tokens) { return tokens * 2 * 8 * 128 * 2; }

double seconds(const Job& job, CommKind kind, GroupShape group, double bytes) {
  return collective_seconds(job.cluster, kind, group, bytes);
}

// Keys and values go round once forward and, with their gradients, twice backward.
TEST(Context, AStepOfARingTakesTheLongerOfBoth) {
  for (const int cp : {4, 16}) {  // within a node, and out of it
    const GroupShape link{2, cp == 4 ? 1 : 8};
    for (const std::int64_t seq : {4096, 1 << 20}) {
      const Job job = job_of(seq);
      const LayerTimes ring = block_of(job, shared(cp, {"ring"}));
      const double block = key_bytes(static_cast<double>(seq / cp));
      const double sent = 3 * (cp - 1) * seconds(job, CommKind::kSend, link, block);
      EXPECT_NEAR(ring.cp, sent - ring.hiding + 0.1 * ring.hiding, 1e-12);
      if (seq == 4096) {
        EXPECT_LT(ring.hiding, (cp == 4 ? 1.0 : 0.5) * sent) << cp;
      } else {
        EXPECT_NEAR(ring.hiding, sent, 1e-12) << cp;
      }
    }
  }
}

TEST(Context, GathersAndExchangesAreWaitedFor) {
  const Job job = job_of(32768);
  const GroupShape group{4, 1};
  const LayerTimes gather = block_of(job, shared(4, {"all_gather"}));
  EXPECT_NEAR(gather.cp,
              2 * seconds(job, CommKind::kAllGather, group, key_bytes(32768)) +
                  seconds(job, CommKind::kReduceScatter, group, key_bytes(32768)),
              1e-12);
  // 32 heads of queries and outputs, 8 of keys and of values: of this rank's tokens.
  const double keys = key_bytes(8192), queries = 2 * keys;
  const LayerTimes exchange = block_of(job, shared(4, {"ulysses"}));
  EXPECT_NEAR(exchange.cp,
              2 * (seconds(job, CommKind::kAllToAll, group, queries + keys) +
                   seconds(job, CommKind::kAllToAll, group, queries)),
              1e-12);
  EXPECT_EQ(gather.hiding, 0);
  EXPECT_EQ(exchange.hiding, 0);
}

// The last of four ranks sees 7 of 16 parts of all pairs, in zigzag order 4.
TEST(Context, ContiguousBalanceIsPricedByItsSlowestRank) {
  const Job job = job_of(1 << 20);
  const auto flops = [&](bool zigzag) {
    return block_of(job, shared(4, {"ring", 1, zigzag})).flops;
  };
  Job none = job;
  none.model.window = 1;  // as good as no attention
  const double rest = block_of(none, shared(4, {"ring"})).flops;
  EXPECT_NEAR((flops(false) - rest) / (flops(true) - rest), 7.0 / 4, 1e-4);
}

TEST(Context, UnevenLengthsAreThoseOfTheLargestRank) {
  const Job even = job_of(65536), one_more = job_of(65537);
  for (const ContextStyle& style : {ContextStyle{"ring"}, {"all_gather"}, {"ulysses"}}) {
    const double most = block_of(one_more, shared(8, style)).stash;
    const double each = block_of(even, shared(8, style)).stash;
    EXPECT_GT(most, each);
    EXPECT_LT(most / each, 8193.0 / 8192 + 1e-9);
  }
}

TEST(Context, ExchangedHeadsAreKeptBeside) {
  const Job job = job_of(65536);
  const double ring = block_of(job, shared(4, {"ring"})).stash;
  const double heads = block_of(job, shared(4, {"ulysses"})).stash;
  EXPECT_DOUBLE_EQ(heads - ring, 65536.0 / 4 * 32 * 128 * 2);  // the output before it goes back
}

TEST(Context, PlansRoundTrip) {
  const Job job = job_of(65536);
  for (const ContextStyle& style : {ContextStyle{"ring", 1, false},
                                    {"all_gather"},
                                    {"ulysses"},
                                    {"hybrid", 2},
                                    {"hybrid", 2, false}}) {
    const Geometry g = shared(4, style);
    EXPECT_EQ(geometry_of(plan_from_json(to_json(to_plan(job, g, {32})))), g);
  }
  EXPECT_THAT(to_string(shared(4, {"hybrid", 2, false})),
              ::testing::HasSubstr("cp4 hybrid/2+contiguous"));
}

}  // namespace
}  // namespace quatrain
