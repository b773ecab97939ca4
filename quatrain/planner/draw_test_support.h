// SPDX-License-Identifier: Apache-2.0
// Random models, clusters and geometries, and what must hold of all of them, shared by the tests
// and, over more draws, by the soak.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quatrain/planner/estimate.h"
#include "quatrain/planner/explain.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/tensor_split.h"

namespace quatrain {

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

struct Drawn {
  Job job;
  Geometry g;
};
inline std::vector<Drawn> drawn(int count, unsigned seed) {
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

// A better cluster does not make a step longer, nor what fits too large. `better` is applied to it.
inline void never_worse(int count, unsigned seed, const auto& better, const char* what) {
  for (Drawn d : drawn(count, seed)) {
    const Estimate before = Estimator(d.job).clocked(d.g).estimate;
    better(d.job.cluster);
    const Estimate after = Estimator(d.job).clocked(d.g).estimate;
    EXPECT_LE(after.step, before.step * (1 + 1e-9))
        << what << ": " << to_string(d.g) << ", seed " << seed;
    EXPECT_TRUE(after.fits || !before.fits) << what << ": " << to_string(d.g) << ", seed " << seed;
  }
}

inline void more_of_anything_is_never_worse(int count, unsigned seed) {
  const auto check = [&](const auto& better, const char* what) {
    never_worse(count, seed, better, what);
  };
  check([](ClusterSpec& c) { c.domain_bandwidth *= 1.7; }, "domain bandwidth");
  check([](ClusterSpec& c) { c.network_bandwidth *= 3; }, "network bandwidth");
  check([](ClusterSpec& c) { c.memory_bandwidth *= 2; }, "memory bandwidth");
  check([](ClusterSpec& c) { c.memory_bytes *= 1.5; }, "memory");
  check([](ClusterSpec& c) { c.gemm_efficiency *= 1.1; }, "efficiency of products");
  check([](ClusterSpec& c) { c.attention_efficiency *= 1.3; }, "efficiency of attention");
  check([](ClusterSpec& c) { c.peak_bf16 *= 2, c.peak_fp32 *= 2; }, "peak");
  check([](ClusterSpec& c) { c.network_latency /= 4, c.domain_latency /= 4; }, "latency");
}

}  // namespace quatrain
