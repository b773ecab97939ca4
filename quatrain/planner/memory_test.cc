// SPDX-License-Identifier: Apache-2.0
// The planner's closed sums against the books.
#include "quatrain/planner/memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "quatrain/planner/books.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

ModelSpec small() {
  ModelSpec m = catalog_model("llama-3.2-1b").spec;
  m.hidden = 64;
  m.layers = 8;
  m.heads = 8;
  m.kv_heads = 4;
  m.head_dim = 8;
  m.ffn = 256;
  m.vocab = 512;
  m.tied = false;
  return m;
}

// Nothing but what is counted.
ClusterSpec bare() {
  ClusterSpec c = cluster("h100-sxm-80gb");
  c.overhead_bytes = c.fragmentation = 0;
  return c;
}

struct MemoryCase {
  Job job;
  Geometry g;
};
std::vector<MemoryCase> memory_cases() {
  std::vector<MemoryCase> all;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const int tp : {1, 2, 4}) {
      for (const int pp : {1, 2, 4}) {
        for (const int zero : {0, 1, 2, 3}) {
          MemoryCase c;
          c.job.model = small();
          c.job.cluster = bare();
          c.job.seq = 64;
          c.g.tp = tp;
          c.g.pp = pp;
          c.g.zero = zero;
          c.g.dp_shard = zero == 0 ? 1 : 2;
          c.g.sequence_parallel = tp > 1;
          c.g.recompute = recompute;
          c.g.micro_batch = 2;
          c.g.microbatches = 8;
          c.g.schedule = pp == 2 ? "interleaved-1f1b" : pp == 4 && tp == 2 ? "zb-h1" : "1f1b";
          c.g.chunks = pp == 2 ? 2 : 1;
          c.job.gpus = c.g.world();
          c.job.global_batch = c.g.dp() * 16;
          all.push_back(std::move(c));
        }
      }
    }
  }
  return all;
}

TEST(Memory, QuickFormsAreNearTheBooks) {
  int compared = 0;
  for (const MemoryCase& c : memory_cases()) {
    LayerTable table(c.job);
    const std::vector<std::int64_t> cut = table.cut(c.g.stages());
    const PipelineLoad pipeline(c.g.schedule, c.g.pp, c.g.chunks, table.kinds(), cut);
    for (int rank = 0; rank < c.g.pp; ++rank, ++compared) {
      const MemoryParts exact = booked_memory(c.job, table.at(c.g), pipeline, c.g, cut, rank);
      const MemoryParts m = memory_of(c.job, table.at(c.g), pipeline, c.g,
                                      rank_work(c.job, table.at(c.g), pipeline, rank));
      SCOPED_TRACE(::testing::Message()
                   << "tp" << c.g.tp << " pp" << c.g.pp << " zero" << c.g.zero << " "
                   << c.g.schedule << " recompute " << name(c.g.recompute) << " rank " << rank);
      // ZeRO's pieces end on rows: a bound below.
      EXPECT_LE(m.params, exact.params);
      EXPECT_LE(m.grads, exact.grads);
      EXPECT_LE(m.optimizer, exact.optimizer);
      EXPECT_EQ(m.logits, exact.logits);
      EXPECT_NEAR(m.activations, exact.activations, 0.1 * exact.activations);
      EXPECT_NEAR(m.buffers, exact.buffers, 0.1 * exact.buffers);  // receive slots
      EXPECT_LE(least_memory(m), exact.sum());
    }
  }
  EXPECT_GE(compared, 200);
}

// Experts lie on ep x etp ranks, all else on tp: what is counted by tp alone is too little.
TEST(Memory, case_160_ExpertsByEpAndEtp) {
  Job job;
  job.model = catalog_model("mixtral-8x7b").spec;
  job.cluster = bare();
  job.gpus = 8;
  job.seq = 4096;
  job.global_batch = 8;
  LayerTable table(job);
  const auto held = [&](int tp, int ep, int etp) {
    Geometry g;
    g.tp = tp;
    g.ep = ep;
    g.etp = etp;
    g.dp_shard = 8 / tp;
    const PipelineLoad pipeline("1f1b", 1, 1, table.kinds(), table.cut(1));
    return rank_work(job, table.at(g), pipeline, 0);
  };
  const RankWork whole = held(1, 1, 1), cut = held(2, 4, 1);
  EXPECT_DOUBLE_EQ(cut.experts, whole.experts / 4);
  // Norms and routers are whole on both ranks of tp.
  const ModelSpec& m = job.model;
  const double norms = static_cast<double>((2 * m.layers + 1) * m.hidden);
  const double routers = static_cast<double>(m.layers * m.hidden * m.experts->num_experts);
  EXPECT_DOUBLE_EQ(cut.outside, (whole.outside - norms - routers) / 2 + norms + routers);
}

TEST(Memory, OtherSoftwareKeepsMore) {
  Job job;
  job.model = catalog_model("llama-3.1-8b").spec;
  job.cluster = bare();
  job.gpus = 8;
  job.seq = 4096;
  job.global_batch = 64;
  Geometry g;
  g.dp_shard = 8;
  g.zero = 1;
  g.microbatches = 8;
  const MemoryParts own = Estimator(job).memory(g);
  job.cluster.stash_factor = 1.5;
  job.cluster.whole_logits = 6;
  const MemoryParts other = Estimator(job).memory(g);
  EXPECT_NEAR(other.activations, 1.5 * own.activations, 0.01 * own.activations);
  EXPECT_DOUBLE_EQ(other.logits, 6.0 * 4096 * 128256);
}

}  // namespace
}  // namespace quatrain
