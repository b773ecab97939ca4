// SPDX-License-Identifier: Apache-2.0
// The planner's exact memory against the books of cost/ over whole steps, which the runtime's
// counters equal.
#include "quatrain/planner/books.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "quatrain/cost/lower.h"
#include "quatrain/cost/peaks.h"
#include "quatrain/cost/zero.h"
#include "quatrain/planner/search.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/test_mixtures.h"

namespace quatrain {
namespace {

struct BooksCase {
  Job job;
  Geometry g;
};

ModelSpec small(bool tied) {
  ModelSpec m = catalog_model("llama-3.2-1b").spec;
  m.hidden = 64;
  m.layers = 8;
  m.heads = 8;
  m.kv_heads = 4;
  m.head_dim = 8;
  m.ffn = 256;
  m.vocab = 510;  // uneven along tp
  m.tied = tied;
  return m;
}

std::string_view schedule_of(int pp, int tp) {
  if (pp == 2) return "interleaved-1f1b";
  return pp == 4 && tp == 2 ? "zb-h1" : pp == 4 && tp == 4 ? "zb-v" : "1f1b";
}

BooksCase case_of(int tp, int pp, int zero, std::int64_t microbatches) {
  BooksCase c;
  c.job.model = small(zero == 1);
  c.job.cluster = cluster("h100-sxm-80gb");
  c.job.seq = 64;
  c.g.tp = tp;
  c.g.pp = pp;
  c.g.zero = zero;
  c.g.dp_shard = zero == 0 ? 1 : 3;
  c.g.sequence_parallel = tp > 1;
  c.g.recompute = static_cast<Recompute>((tp + zero) % 3);
  c.g.micro_batch = 2;
  c.g.microbatches = microbatches;
  c.g.schedule = schedule_of(pp, tp);
  c.g.chunks = c.g.schedule == "1f1b" || c.g.schedule == "zb-h1" ? 1 : 2;
  c.job.gpus = c.g.world();
  c.job.global_batch = c.g.dp() * 2 * microbatches;
  return c;
}

std::vector<BooksCase> books_cases() {
  std::vector<BooksCase> all;
  for (const std::int64_t microbatches : {8, 29, 40}) {
    for (const int tp : {1, 2, 4}) {
      for (const int pp : {1, 2, 4}) {
        for (const int zero : {0, 1, 2, 3}) all.push_back(case_of(tp, pp, zero, microbatches));
      }
    }
  }
  return all;
}

struct Counted {
  StateBytes state;  // of the data rank that keeps most
  RowPeaks peaks;
};
// Of one pipeline rank's whole row, at the first place along tp.
Counted counted(const BooksCase& c, const std::vector<std::int64_t>& cut, int pp) {
  const Plan plan = to_plan(c.job, c.g, cut);
  const Schedule schedule = lowered_schedule(c.job.model, plan, {});
  const auto held = [](const RowPeaks& p) { return p.activations + p.slots + p.logits; };
  Counted most{};
  for (int rank = 0; rank < c.g.world(); ++rank) {
    const Mesh mesh(plan.degrees, plan.axis_order, rank);
    if (mesh.coord(Axis::kPp) != pp || mesh.coord(Axis::kTp) != 0) continue;
    const ZeroShape shape = zero_shape(c.job.model, plan, {}, rank, schedule.rank_of_stage.front());
    const StateBytes s = state_bytes(shape, "adamw", 0.0);
    const auto sum = [](const StateBytes& b) { return b.params + b.grads + b.optimizer; };
    if (sum(most.state) < sum(s)) most.state = s;
    const RowPeaks peaks = row_peaks(schedule.per_rank[static_cast<std::size_t>(pp)], shape,
                                     c.job.model, work_shape(plan, rank));
    if (held(most.peaks) < held(peaks)) most.peaks = peaks;
  }
  return most;
}

double bytes(Bytes b) { return static_cast<double>(b.value); }

// Of each pipeline rank; how many these were.
int expect_the_books(const std::vector<BooksCase>& all) {
  int compared = 0;
  for (const BooksCase& c : all) {
    EXPECT_TRUE(has_books(c.job, c.g));
    LayerTable table(c.job);
    const std::vector<std::int64_t> cut = table.cut(c.g.stages());
    const MicrobatchTimes& times = table.at(c.g);
    const PipelineLoad pipeline(c.g.schedule, c.g.pp, c.g.chunks, table.kinds(), cut);
    for (int rank = 0; rank < c.g.pp; ++rank, ++compared) {
      SCOPED_TRACE(::testing::Message()
                   << to_plan(c.job, c.g, cut).schedule << " tp" << c.g.tp << " pp" << c.g.pp
                   << " zero" << c.g.zero << " micro-batches " << c.g.microbatches << " cp"
                   << c.g.cp << " " << c.g.cp_style.name << " seq " << c.job.seq << " rank "
                   << rank);
      const Counted books = counted(c, cut, rank);
      const MemoryParts m = booked_memory(c.job, times, pipeline, c.g, cut, rank);
      EXPECT_EQ(m.params, bytes(books.state.params));
      EXPECT_EQ(m.grads, bytes(books.state.grads));
      EXPECT_EQ(m.optimizer, bytes(books.state.optimizer));
      EXPECT_EQ(m.logits, bytes(books.peaks.logits));
      EXPECT_EQ(m.activations, bytes(books.peaks.activations));
      EXPECT_EQ(
          m.buffers - sum_of(times, pipeline.of_rank(rank)).working,
          bytes(books.peaks.gathered) + bytes(books.peaks.slots) + bytes(books.peaks.whole_grads));
    }
  }
  return compared;
}

TEST(Books, CategoriesAreTheBooksOfEveryRank) { EXPECT_GE(expect_the_books(books_cases()), 200); }

// Dense and latent attention; experts that stay where their rows are.
std::vector<ModelSpec> models_of_contexts() {
  const ModelSpec latent = as_deepseek(small(false));
  ModelSpec dense = latent;
  dense.experts.reset();
  return {small(false), small(true), latent, dense};
}

struct Shared {
  int cp;
  ContextStyle style;
};

TEST(Books, RanksThatShareSequences) {
  std::vector<BooksCase> all;
  const Shared shared[] = {
      {2, {"ring"}},    {3, {"ring", 1, false}}, {3, {"all_gather"}},      {2, {"ulysses"}},
      {4, {"ulysses"}}, {4, {"hybrid", 2}},      {4, {"hybrid", 2, false}}};
  for (const ModelSpec& model : models_of_contexts()) {
    for (const auto& [cp, style] : shared) {
      for (const std::int64_t seq : {48, 61, 63}) {
        for (const int pp : {1, 2, 4}) {
          BooksCase c = case_of(pp == 2 ? 2 : 1, pp, static_cast<int>(all.size() % 4), 8);
          c.job.model = model;
          c.job.seq = seq;
          c.g.cp = cp;
          c.g.cp_style = style;
          c.g.recompute = static_cast<Recompute>(all.size() % 3);
          c.job.gpus = c.g.world();
          all.push_back(std::move(c));
        }
      }
    }
  }
  EXPECT_GE(expect_the_books(all), 500);
}

// How many rows of its experts come from ranks with other numbers of tokens is not said.
TEST(Books, UnevenTokensOfExpertsHaveNone) {
  Job job;
  job.model = catalog_model("mixtral-8x7b").spec;
  job.cluster = cluster("h100-sxm-80gb");
  job.seq = 4097;
  Geometry g;
  g.cp = 2;
  g.ep = 2;
  EXPECT_FALSE(has_books(job, g));
  job.seq = 4096;
  EXPECT_TRUE(has_books(job, g));
  g.ep = 1;
  job.seq = 4097;
  EXPECT_TRUE(has_books(job, g));
}

// What is answered is what the books say: of plans, and of --why and simulate (settled()).
TEST(Books, RankedPlansAreExact) {
  Job job;
  job.model = catalog_model("llama-3.1-8b").spec;
  job.cluster = cluster("h100-sxm-80gb");
  job.gpus = 16;
  job.seq = 8192;
  job.global_batch = 64;
  Estimator estimator(job);
  const SearchResult result = search(job, SearchRequest{});
  ASSERT_FALSE(result.plans.empty());
  for (const RankedPlan& plan : result.plans) {
    const MemoryParts m = plan.estimate.memory, books = estimator.booked(plan.geometry);
    EXPECT_EQ(m.sum(), books.sum());
    EXPECT_EQ(m.activations, books.activations);
    EXPECT_EQ(estimator.settled(plan.geometry).estimate.memory.sum(), books.sum());
    EXPECT_LE(books.sum(), job.cluster.memory_bytes);
  }
}

// A limit between the quick sum and the exact one: the exact one decides, either way.
TEST(Books, TheExactSumDecidesWhatFits) {
  Job job;
  job.model = catalog_model("llama-3.1-8b").spec;
  job.cluster = cluster("h100-sxm-80gb");
  job.gpus = 16;
  job.seq = 8192;
  job.global_batch = 64;
  SearchRequest one;
  one.top = 1;
  one.fixed = parse_fixed("tp=2,pp=2,zero=1,micro_batch=1,schedule=1f1b,recompute=none");
  const RankedPlan plan = search(job, one).plans.front();
  const double exact = plan.estimate.memory.sum();
  one.fixed.gather_again = plan.geometry.gather_again;
  one.fixed.dp_replicate = plan.geometry.dp_replicate;
  job.cluster.memory_bytes = exact;
  EXPECT_EQ(search(job, one).plans.size(), 1U);
  job.cluster.memory_bytes = exact - 1;
  const SearchResult none = search(job, one);
  EXPECT_TRUE(none.plans.empty());
  ASSERT_TRUE(none.nearest.has_value());
  EXPECT_EQ(none.nearest->estimate.memory.sum(), exact);
}

}  // namespace
}  // namespace quatrain
