// SPDX-License-Identifier: Apache-2.0
#include "step_rank.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <utility>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/base/rng.h"
#include "quatrain/cost/lower.h"
#include "quatrain/engine/job.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/kernels/memory.h"
#include "quatrain/spec/context_split.h"
#include "quatrain/spec/plan.h"
#include "step_clock.h"
#include "step_comm.h"

namespace quatrain {
namespace {

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

BenchModel mixtral() {
  BenchModel model = llama();
  ModelSpec& s = model.spec;
  s.family = Family::kMixtral;
  s.layers = 4;
  s.ffn = 704;
  s.experts = Experts{.num_experts = 8, .top_k = 2, .ffn = 704};
  return model;
}

// The same random tokens every step, as in the counterparts; other ones on every data rank.
class RandomTokens final : public DataLoader {
 public:
  RandomTokens(const BenchModel& model, int data_rank, int microbatches) {
    for (int m = 0; m < microbatches; ++m) {
      batches_.push_back(draw(model, std::int64_t{data_rank} * microbatches + m));
    }
  }
  std::int64_t num_microbatches() const override {
    return static_cast<std::int64_t>(batches_.size());
  }
  const Batch& microbatch(std::int64_t, int index) override {
    return batches_.at(static_cast<std::size_t>(index));
  }
  std::int64_t trained_tokens(std::int64_t) override {
    return num_microbatches() * batches_.front().trained_tokens;
  }
  std::vector<std::int64_t> cursor(std::int64_t) const override { return {}; }

 private:
  static Batch draw(const BenchModel& model, std::int64_t number) {
    const std::int64_t batch = model.batch;
    const std::int64_t seq = model.seq;
    const RandomStream stream(0, static_cast<std::uint64_t>(number));
    at::Tensor ids = at::empty({batch, seq + 1}, at::kLong);
    auto id = ids.accessor<std::int64_t, 2>();
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t t = 0; t <= seq; ++t) {
        id[b][t] =
            static_cast<std::int64_t>(stream.below(static_cast<std::uint64_t>(b * (seq + 1) + t),
                                                   static_cast<std::uint64_t>(model.spec.vocab)));
      }
    }
    Batch out;
    out.tokens_BT = ids.narrow(1, 0, seq).contiguous();
    out.labels_BT = ids.narrow(1, 1, seq).contiguous();
    out.positions_BT = at::arange(seq, at::kLong).expand({batch, seq}).contiguous();
    out.sample_ids_B = at::arange(number * batch, (number + 1) * batch, at::kLong);
    out.trained_tokens = batch * seq;
    return out;
  }

  std::vector<Batch> batches_;
};

Plan plan_of(const BenchModel& model, const StepOptions& options, int ranks) {
  Plan plan;
  plan.degrees[static_cast<std::size_t>(Axis::kPp)] = options.pp;
  plan.degrees[static_cast<std::size_t>(Axis::kDpShard)] =
      ranks / (options.tp * options.pp * options.cp);
  plan.degrees[static_cast<std::size_t>(Axis::kCp)] = options.cp;
  plan.cp_style = options.cp_style;
  plan.degrees[static_cast<std::size_t>(Axis::kTp)] = options.tp;
  if (model.spec.experts) {
    const int etp = options.etp > 0 ? options.etp : options.tp;
    plan.degrees[static_cast<std::size_t>(Axis::kEdpShard)] =
        ranks / (options.pp * options.ep * etp);
    plan.degrees[static_cast<std::size_t>(Axis::kEp)] = options.ep;
    plan.degrees[static_cast<std::size_t>(Axis::kEtp)] = etp;
  }
  plan.seq_len = model.seq;
  plan.microbatch_size = model.batch;
  plan.num_microbatches = options.accumulation;
  plan.zero_stage = options.zero_stage;
  plan.prefetch = options.prefetch;
  plan.sequence_parallel = options.sequence_parallel;
  plan.gather_again = options.gather_again;
  plan.overlap_chunks = options.overlap_chunks;
  plan.ep_chunks = options.ep_chunks;
  plan.schedule = options.schedule;
  plan.chunks = options.chunks;
  plan.stage_begin = first_layers(options.layers_per_stage.empty()
                                      ? even_layers(model.spec.layers, options.pp * options.chunks)
                                      : options.layers_per_stage);
  plan.dtype = options.bf16 ? Dtype::kBFloat16 : Dtype::kFloat32;
  return plan;
}

RankJobOptions job_options(const BenchModel& bench, const StepOptions& options, int ranks) {
  RankJobOptions job{.spec = bench.spec,
                     .plan = plan_of(bench, options, ranks),
                     .build = {.dtype = options.bf16 ? at::kBFloat16 : at::kFloat},
                     .optimizer = {.max_norm = 0.0},
                     .executor = {.lr = 3e-4, .trace = !options.trace.empty() || options.pp > 1}};
  job.schedule = lowered_schedule(job.spec, job.plan, {});
  return job;
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of a step that ended at `end_us`, with its last action, on the clock of `collectives`.
void write_trace(StepReport& report, double end_us, const CollectiveTimes& collectives,
                 std::size_t first, const std::string& prefix, int rank) {
  const double shift_us = end_us - report.trace.back().end_us;
  for (TraceEvent& event : report.trace) {
    event.begin_us += shift_us;
    event.end_us += shift_us;
  }
  const std::array rows = {to_chrome_rows(report.trace, rank),
                           to_chrome_rows(collectives, first, rank)};
  std::ofstream(fmt::format("{}.{}.json", prefix, rank)) << to_chrome_json(rows);
}

nlohmann::json train(Communicator& world, CollectiveTimes& collectives, const BenchModel& bench,
                     const StepOptions& options) {
  const RankJobOptions job_of = job_options(bench, options, world.size());
  const Mesh mesh(job_of.plan.degrees, job_of.plan.axis_order, world.rank());
  RandomTokens data(bench, mesh.coord(Axis::kDpShard), options.accumulation);
  RankJob job(job_of, data, world);
  std::vector<double> seconds, exposed;
  ActionTimes actions;
  StepReport first, last;
  std::size_t first_collective = 0;
  double end_us = 0.0;
  for (int step = 1; step <= options.warmup + options.steps; ++step) {
    first_collective = collectives.size();
    const double s = seconds_of([&] { last = job.step(step); });
    end_us = steady_us();
    if (step == 1) first = last;
    if (step <= options.warmup) continue;
    seconds.push_back(s);
    exposed.push_back((last.exposed_comm_ms + last.bubble_ms) / 1e3);
    actions.add(last.trace);
  }
  if (!options.trace.empty()) {
    write_trace(last, end_us, collectives, first_collective, options.trace, world.rank());
  }
  nlohmann::json result = {{"seconds", seconds},
                           {"exposed_comm_s", exposed},
                           {"losses", {first.loss, last.loss}},
                           {"tokens", last.trained_tokens}};
  if (options.pp > 1) result["clock_s"] = actions.clock_s(world, job_of.schedule);
  return result;
}

}  // namespace

std::map<std::string, BenchModel> bench_models() {
  return {{"gpt2-6x384", gpt2(6, 384, 8192, 8)},
          {"gpt2-124m", gpt2(12, 768, 50257, 4)},
          {"llama-8x512", llama()},
          {"mixtral-4x512", mixtral()}};
}

nlohmann::json measure_steps(std::unique_ptr<Communicator> world, const BenchModel& model,
                             const StepOptions& options) {
  if (world->size() % (options.tp * options.pp * options.cp) != 0) {
    throw ConfigError(fmt::format("{} ranks are no multiple of tp {} x pp {} x cp {}",
                                  world->size(), options.tp, options.pp, options.cp));
  }
  const ContextSplit split = context_split(plan_of(model, options, world->size()), world->rank());
  throw_if_any(check_context(model.spec, options.tp, split, model.seq));
  MemoryOwner memory;
  const RankThread prologue({.threads = options.threads, .memory = &memory});
  CollectiveTimes collectives;
  const CommListener listener = into(collectives);
  const std::unique_ptr<Communicator> timed = make_timed(std::move(world), listener);
  nlohmann::json result = train(*timed, collectives, model, options);
  const at::Tensor peak = at::full({1}, memory.peak().total(), at::kLong);
  timed->all_reduce(peak, ReduceOp::kMax).wait();
  result["peak_tensor_bytes"] = peak.item<std::int64_t>();
  return result;
}

}  // namespace quatrain
