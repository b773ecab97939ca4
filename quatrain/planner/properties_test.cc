// SPDX-License-Identifier: Apache-2.0
// What must hold of every model, cluster and geometry.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quatrain/base/error.h"
#include "quatrain/planner/explain.h"
#include "quatrain/planner/search.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/tensor_split.h"

namespace quatrain {
namespace {

class Draw {
 public:
  explicit Draw(unsigned seed) : engine_(seed) {}
  double log_uniform(double least, double most) {
    std::uniform_real_distribution<double> exponent(std::log(least), std::log(most));
    return std::exp(exponent(engine_));
  }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() +
             std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(engine_));
  }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }

  ModelSpec model() {
    const char* base = one_of(
        {"llama-3.1-8b", "gpt2", "qwen3-0.6b", "mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b"});
    ModelSpec m = catalog_model(base).spec;
    m.layers = one_of<std::int64_t>({1, 2, 4, 7, 16, 33, 80});
    m.hidden = one_of<std::int64_t>({64, 512, 2048, 5120});
    m.heads = one_of<std::int64_t>({4, 8, 32});
    m.kv_heads = m.latent || chance(0.5) ? m.heads : m.heads / 4;
    if (!m.latent) m.head_dim = one_of<std::int64_t>({16, 64, 128});
    m.ffn = one_of<std::int64_t>({96, 1024, 11008});
    m.vocab = one_of<std::int64_t>({257, 32000, 151936});
    m.tied = chance(0.5);
    m.max_positions = 1 << 20;
    if (m.experts) {
      m.experts->num_experts = one_of<std::int64_t>({8, 16});
      m.experts->top_k = one_of<std::int64_t>({1, 2, 4});
      m.experts->num_groups = m.experts->top_k_groups = 1;
      m.experts->first_dense = chance(0.3) ? 1 : 0;
    }
    return m;
  }

  ClusterSpec cluster_of() {
    const std::vector<std::string> names = catalog_clusters();
    ClusterSpec c =
        cluster(names[std::uniform_int_distribution<std::size_t>(0, names.size() - 1)(engine_)]);
    c.peak_bf16 *= log_uniform(0.1, 10);
    c.memory_bytes *= log_uniform(0.2, 5);
    c.memory_bandwidth *= log_uniform(0.1, 10);
    c.domain = one_of({1.0, 4.0, 8.0, 72.0});
    c.domain_bandwidth *= log_uniform(0.1, 10);
    c.network_bandwidth *= log_uniform(0.05, 5);
    c.network_latency *= log_uniform(0.1, 100);
    return c;
  }

  Job job() {
    Job job;
    job.model = model();
    job.cluster = cluster_of();
    job.gpus = one_of({1, 2, 6, 8, 64, 1024});
    job.seq = one_of<std::int64_t>({128, 4096, 32768});
    job.global_batch = one_of<std::int64_t>({1, 6, 64, 1024});
    job.dtype = chance(0.8) ? Dtype::kBFloat16 : Dtype::kFloat32;
    return job;
  }

  // Of the job's accelerators, whether it fits or not.
  Geometry geometry(Job& job) {
    Geometry g;
    g.tp = one_of({1, 2, 4});
    g.sequence_parallel = g.tp > 1 && chance(0.7);
    g.gather_again = g.sequence_parallel && chance(0.5);
    g.pp = std::min<int>(one_of({1, 2, 4}), static_cast<int>(job.model.layers));
    g.chunks = 1;
    if (g.pp > 1) g.schedule = one_of<std::string_view>({"1f1b", "zb-h1", "gpipe"});
    g.dp_shard = one_of({1, 2, 8});
    g.zero = one_of({0, 1, 2, 3});
    g.cp = chance(0.2) ? 2 : 1;
    if (g.cp > 1) g.cp_style = {g.zero % 2 == 0 ? "ring" : "all_gather", 1, g.dp_shard < 8};
    if (job.model.experts) {
      g.etp = chance(0.5) ? 1 : g.tp;
      g.ep = one_of({1, 2});
      if (g.dp() * g.cp * g.tp % (g.ep * g.etp) != 0) g.ep = 1;
    }
    g.micro_batch = one_of<std::int64_t>({1, 2});
    g.microbatches = one_of<std::int64_t>({1, 4, 33});
    g.recompute = one_of({Recompute::kNone, Recompute::kSelective, Recompute::kFull});
    job.gpus = g.world();
    job.global_batch = g.micro_batch * g.microbatches * g.dp();
    return g;
  }

 private:
  std::mt19937 engine_;
};

std::vector<double> numbers(const Estimate& e) {
  const StepParts& p = e.parts;
  const MemoryParts& m = e.memory;
  return {p.compute,    p.exposed_tp, p.exposed_cp,  p.exposed_ep, p.exposed_dp,
          p.exposed_pp, p.bubble,     p.optimizer,   p.other,      m.params,
          m.grads,      m.optimizer,  m.activations, m.logits,     m.buffers,
          m.overhead,   e.step,       e.model_flops, e.mfu};
}

struct Drawn {
  Job job;
  Geometry g;
};
std::vector<Drawn> drawn(int count, unsigned seed) {
  Draw draw(seed);
  std::vector<Drawn> all;
  while (static_cast<int>(all.size()) < count) {
    Drawn one{draw.job(), {}};
    one.g = draw.geometry(one.job);
    const TensorSplit split{.degree = one.g.tp,
                            .experts = ExpertSplit{.ep = one.g.ep, .etp = one.g.etp}};
    if (check_split(one.job.model, split).empty()) all.push_back(std::move(one));
  }
  return all;
}

TEST(Properties, AThousandRandomGeometriesHaveSoundNumbers) {
  for (const Drawn& d : drawn(1000, 1)) {
    Estimator estimator(d.job);
    const Estimate e = estimator.clocked(d.g).estimate;
    for (const double number : numbers(e)) {
      ASSERT_TRUE(std::isfinite(number)) << to_string(d.g) << " " << d.job.model.layers;
      ASSERT_GE(number, 0) << to_string(d.g);
    }
    EXPECT_DOUBLE_EQ(e.step, e.parts.sum());
    // No faster than its FLOPs at the peak, nor than its weights can be read.
    const double peak = d.job.cluster.peak(d.job.dtype) * d.job.gpus;
    EXPECT_GE(e.step * (1 + 1e-9), e.model_flops / peak) << to_string(d.g);
    if (d.g.zero == 0) {
      EXPECT_GE(e.step, e.memory.params / d.job.cluster.memory_bandwidth) << to_string(d.g);
    }
  }
}

TEST(Properties, AThousandRandomJobsAreSearched) {
  Draw draw(2);
  int found = 0;
  for (int n = 0; n < 1000; ++n) {
    Job job = draw.job();
    job.gpus = std::min(job.gpus, 16);
    SearchRequest request;
    request.top = 1;
    request.fixed.schedule = "1f1b";
    request.fixed.micro_batch = 1;
    request.fixed.recompute = draw.one_of({Recompute::kNone, Recompute::kFull});
    const SearchResult result = search(job, request);
    for (const RankedPlan& plan : result.plans) {
      ++found;
      EXPECT_TRUE(plan.estimate.fits);
      EXPECT_EQ(plan.geometry.world(), job.gpus);
      EXPECT_FALSE(why(job, plan).empty());
      for (const double number : numbers(plan.estimate)) ASSERT_TRUE(std::isfinite(number));
    }
    if (result.plans.empty()) {
      EXPECT_FALSE(why_nothing(job, result).empty());
    }
  }
  EXPECT_GT(found, 300);
}

// `better` is applied to the cluster.
void never_worse(const auto& better, const char* what) {
  for (Drawn d : drawn(100, 3)) {
    const Estimate before = Estimator(d.job).clocked(d.g).estimate;
    better(d.job.cluster);
    const Estimate after = Estimator(d.job).clocked(d.g).estimate;
    EXPECT_LE(after.step, before.step * (1 + 1e-9)) << what << ": " << to_string(d.g);
    EXPECT_TRUE(after.fits || !before.fits) << what << ": " << to_string(d.g);
  }
}

TEST(Properties, MoreOfAnythingIsNeverWorse) {
  never_worse([](ClusterSpec& c) { c.domain_bandwidth *= 1.7; }, "domain bandwidth");
  never_worse([](ClusterSpec& c) { c.network_bandwidth *= 3; }, "network bandwidth");
  never_worse([](ClusterSpec& c) { c.memory_bandwidth *= 2; }, "memory bandwidth");
  never_worse([](ClusterSpec& c) { c.memory_bytes *= 1.5; }, "memory");
  never_worse([](ClusterSpec& c) { c.gemm_efficiency *= 1.1; }, "efficiency of products");
  never_worse([](ClusterSpec& c) { c.attention_efficiency *= 1.3; }, "efficiency of attention");
  never_worse([](ClusterSpec& c) { c.peak_bf16 *= 2, c.peak_fp32 *= 2; }, "peak");
  never_worse([](ClusterSpec& c) { c.network_latency /= 4, c.domain_latency /= 4; }, "latency");
}

// Where all links are equal, it does not matter which axis rides which.
TEST(Properties, EqualLinksMakeAxesAlike) {
  Job job;
  job.model = catalog_model("llama-3.1-8b").spec;
  job.cluster = cluster("h100-sxm-80gb");
  job.cluster.domain = 1024;
  job.gpus = 16;
  job.seq = 4096;
  job.global_batch = 16;
  Geometry sharded, replicated;
  sharded.dp_shard = replicated.dp_replicate = 16;
  sharded.zero = replicated.zero = 0;
  const Estimate a = Estimator(job).estimate(sharded), b = Estimator(job).estimate(replicated);
  EXPECT_DOUBLE_EQ(a.step, b.step);
  EXPECT_DOUBLE_EQ(a.memory.sum(), b.memory.sum());
}

TEST(Properties, TheSameQuestionHasTheSameAnswer) {
  Draw draw(4);
  for (int n = 0; n < 20; ++n) {
    const Job job = draw.job();
    SearchRequest request;
    const SearchResult a = search(job, request), b = search(job, request);
    ASSERT_EQ(a.plans.size(), b.plans.size());
    for (std::size_t i = 0; i < a.plans.size(); ++i) {
      EXPECT_EQ(a.plans[i].geometry, b.plans[i].geometry);
    }
  }
}

}  // namespace
}  // namespace quatrain
