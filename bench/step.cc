// SPDX-License-Identifier: Apache-2.0
// One Quatrain process of the step benchmark: the counterpart of step_torch.py, through the library
// alone. Prints one JSON line: seconds of each measured step, tokens a step, peak resident bytes.
#include <ATen/ops/randint.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "quatrain/comm/self/self.h"
#include "quatrain/engine/executor.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/kernels/memory.h"
#include "quatrain/model/model.h"
#include "quatrain/optim/optimizer.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

struct BenchModel {
  ModelSpec spec;
  std::int64_t batch;
  std::int64_t seq;
};

BenchModel gpt2(std::int64_t layers, std::int64_t hidden, std::int64_t vocab, std::int64_t batch) {
  ModelSpec s;
  s.family = Family::kGpt2;
  s.layers = layers;
  s.hidden = hidden;
  s.heads = s.kv_heads = hidden / 64;
  s.head_dim = 64;
  s.ffn = 4 * hidden;
  s.vocab = vocab;
  s.max_positions = 256;
  s.norm = NormKind::kLayerNorm;
  s.norm_eps = 1e-5;
  s.mlp = MlpKind::kGelu;
  s.position = PositionKind::kLearned;
  s.qkv_bias = s.out_bias = s.mlp_bias = s.tied = true;
  return {s, batch, 256};
}

BenchModel llama() {
  ModelSpec s;
  s.layers = 8;
  s.hidden = 512;
  s.heads = 8;
  s.kv_heads = 2;
  s.head_dim = 64;
  s.ffn = 1408;
  s.vocab = 16384;
  s.max_positions = 512;
  return {s, 4, 512};
}

// The same random tokens every step, as in the counterpart.
class RandomTokens final : public DataLoader {
 public:
  RandomTokens(const BenchModel& m) {
    at::Tensor ids = at::randint(m.spec.vocab, {m.batch, m.seq + 1}, at::kLong);
    batch_.tokens_BT = ids.narrow(1, 0, m.seq).contiguous();
    batch_.labels_BT = ids.narrow(1, 1, m.seq).contiguous();
    batch_.positions_BT = at::arange(m.seq, at::kLong).expand({m.batch, m.seq}).contiguous();
    batch_.sample_ids_B = at::arange(m.batch, at::kLong);
    batch_.trained_tokens = m.batch * m.seq;
  }
  std::int64_t num_microbatches() const override { return 1; }
  const Batch& microbatch(std::int64_t, int) override { return batch_; }
  std::int64_t trained_tokens(std::int64_t) override { return batch_.trained_tokens; }
  std::vector<std::int64_t> cursor(std::int64_t) const override { return {}; }

 private:
  Batch batch_;
};

struct Options {
  std::string model = "gpt2-6x384";
  int steps = 6;
  int warmup = 2;
  int threads = 2;
  bool bf16 = false;
  std::string trace;
};

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

nlohmann::json measure(const BenchModel& m, const Options& options) {
  MemoryOwner memory;
  nlohmann::json result;
  {
    RankThread prologue({.threads = options.threads, .memory = &memory});
    BuildOptions build;
    build.dtype = options.bf16 ? at::kBFloat16 : at::kFloat;
    auto world = make_self_communicator();
    DataGroups groups = make_data_groups(*world, Mesh());
    Model model(m.spec, build);
    ZeroUnits units(model, groups, 0);
    units.allocate(true);
    units.initialise(0);
    auto optimizer = make_optimizer({.max_norm = 0.0}, units.shards());
    optimizer->allocate();
    RandomTokens data(m);
    Executor executor(model, units, *optimizer, data, *world, {.lr = 3e-4});
    const Schedule schedule = with_optimizer_step(make_schedule("1f1b", {}));
    std::vector<double> seconds;
    for (int step = 1; step <= options.warmup + options.steps; ++step) {
      const double s = seconds_of([&] { executor.run(schedule, step, 1.0); });
      if (step > options.warmup) seconds.push_back(s);
    }
    result["seconds"] = seconds;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  result["tokens"] = m.batch * m.seq;
  result["peak_bytes"] = static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  result["peak_tensor_bytes"] = memory.peak().total();
  return result;
}

}  // namespace
}  // namespace quatrain

int main(int argc, char** argv) {
  quatrain::install_counting_allocator();
  const std::map<std::string, quatrain::BenchModel> models = {
      {"gpt2-6x384", quatrain::gpt2(6, 384, 8192, 8)},
      {"gpt2-124m", quatrain::gpt2(12, 768, 50257, 4)},
      {"llama-8x512", quatrain::llama()}};
  quatrain::Options options;
  CLI::App app("One process of the step benchmark");
  app.add_option("--model", options.model)->check(CLI::IsMember(models));
  app.add_option("--steps", options.steps);
  app.add_option("--warmup", options.warmup);
  app.add_option("--threads", options.threads);
  app.add_flag("--bf16", options.bf16);
  CLI11_PARSE(app, argc, argv);
  const auto result = quatrain::measure(models.at(options.model), options);
  std::printf("%s\n", result.dump().c_str());
  return 0;
}
