// SPDX-License-Identifier: Apache-2.0
// Quatrain's side of the step benchmark, the counterpart of step_torch.py and step_torch_ranks.py:
// one rank, ranks as threads of this process, or one process of many under mpirun. Rank 0 prints
// one JSON line: measure_steps()'s, and the peak resident bytes of a rank.
#include <ATen/ops/full.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "quatrain/comm/launch.h"
#include "quatrain/comm/mpi/mpi.h"
#include "quatrain/comm/self/self.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/kernels/matmul.h"
#include "quatrain/kernels/memory.h"
#include "step_floor.h"
#include "step_rank.h"

namespace quatrain {
namespace {

struct Options {
  bool widen_bf16 = false;
  bool floor = false;
  std::string model = "gpt2-6x384";
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  int ranks = 1;
  std::string backend = "thread";
  StepOptions step;
};

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

BenchModel model_of(const Options& options) {
  BenchModel model = bench_models().at(options.model);
  if (options.batch > 0) model.batch = options.batch;
  if (options.seq > 0) model.seq = model.spec.max_positions = options.seq;
  return model;
}

nlohmann::json run_threads(const Options& options) {
  nlohmann::json result;
  run_thread_ranks(options.ranks, {}, [&](std::unique_ptr<Communicator> world) {
    const int rank = world->rank();
    nlohmann::json own = measure_steps(std::move(world), model_of(options), options.step);
    if (rank == 0) result = std::move(own);
  });
  result["peak_bytes"] = peak_resident_bytes() / options.ranks;
  return result;
}

nlohmann::json run_process(const Options& options) {
  MpiWorld mpi(discover_launch(process_environment));
  nlohmann::json result = measure_steps(mpi.communicator(), model_of(options), options.step);
  const auto world = mpi.communicator();
  const at::Tensor peak = at::full({1}, peak_resident_bytes(), at::kLong);
  world->all_reduce(peak, ReduceOp::kMax).wait();
  result["peak_bytes"] = peak.item<std::int64_t>();
  return world->rank() == 0 ? result : nlohmann::json();
}

nlohmann::json run(const Options& options) {
  kernels::widen_bf16_products(options.widen_bf16);
  if (options.floor) {
    nlohmann::json result = measure_floor(model_of(options), options.step);
    result["peak_bytes"] = peak_resident_bytes();
    return result;
  }
  if (options.backend == "mpi") return run_process(options);
  if (options.ranks > 1) return run_threads(options);
  nlohmann::json result = measure_steps(make_self_communicator(), model_of(options), options.step);
  result["peak_bytes"] = peak_resident_bytes();
  return result;
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("--model", options.model)->check(CLI::IsMember(bench_models()));
  app.add_option("--batch", options.batch, "sequences a data rank and micro-batch; 0: the model's");
  app.add_option("--seq", options.seq, "tokens of a sequence; 0: the model's");
  app.add_option("--ranks", options.ranks, "threads of this process")->check(CLI::Range(1, 64));
  app.add_option("--backend", options.backend, "mpi: this is one process under mpirun")
      ->check(CLI::IsMember({"thread", "mpi"}));
  app.add_option("--zero", options.step.zero_stage)->check(CLI::Range(0, 3));
  app.add_option("--accumulation,--microbatches", options.step.accumulation)
      ->check(CLI::Range(1, 1024));
  app.add_option("--prefetch", options.step.prefetch)->check(CLI::Range(0, 64));
  app.add_option("--tp", options.step.tp, "ranks that share each matrix")->check(CLI::Range(1, 64));
  app.add_option("--cp", options.step.cp, "ranks that share each sequence")
      ->check(CLI::Range(1, 64));
  app.add_option("--cp-style", options.step.cp_style)
      ->check(CLI::IsMember({"ring", "all_gather", "ulysses"}));
  app.add_option("--ep", options.step.ep, "ranks that hold experts between them")
      ->check(CLI::Range(1, 64));
  app.add_option("--etp", options.step.etp, "ranks that share each expert; 0: as --tp")
      ->check(CLI::Range(0, 64));
  app.add_option("--ep-chunks", options.step.ep_chunks, "pieces of their rows")
      ->check(CLI::Range(1, 64));
  app.add_flag("--sequence-parallel", options.step.sequence_parallel);
  app.add_flag("--gather-again", options.step.gather_again);
  app.add_option("--overlap-chunks", options.step.overlap_chunks)->check(CLI::Range(1, 64));
  app.add_option("--pp", options.step.pp, "pipeline ranks")->check(CLI::Range(1, 64));
  app.add_option("--schedule", options.step.schedule);
  app.add_option("--chunks", options.step.chunks, "stages a rank")->check(CLI::Range(1, 64));
  app.add_option("--layers-per-stage", options.step.layers_per_stage, "default: even")
      ->delimiter(',');
  app.add_option("--steps", options.step.steps)->check(CLI::Range(1, 1 << 20));
  app.add_option("--warmup", options.step.warmup);
  app.add_option("--threads", options.step.threads, "compute threads a rank");
  app.add_flag("--bf16", options.step.bf16);
  app.add_flag("--widen-bf16", options.widen_bf16, "as on a CPU without bf16 units");
  app.add_flag("--floor", options.floor, "the products of a step alone, on one rank");
  app.add_option("--trace", options.step.trace, "writes the last step as TRACE.<rank>.json");
}

}  // namespace
}  // namespace quatrain

int main(int argc, char** argv) {
  quatrain::install_counting_allocator();
  quatrain::Options options;
  CLI::App app("Quatrain's side of the step benchmark");
  quatrain::add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    const nlohmann::json result = quatrain::run(options);
    if (!result.is_null()) std::printf("%s\n", result.dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
