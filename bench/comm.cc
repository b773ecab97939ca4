// SPDX-License-Identifier: Apache-2.0
// The communication benchmark in one process: the thread backend beside plain copies of the same
// bytes, by every rank at once and by one. Prints one JSON line. Driven by comm.py.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>

#include "comm_measure.h"
#include "quatrain/comm/thread/thread.h"

namespace quatrain {
namespace {

// S bytes by every rank at once, or by rank 0 while the others wait.
Contender copies(std::string name, int n, bool takes_part) {
  return {std::move(name), [n, takes_part](BenchOperation, std::int64_t piece) -> Step {
            if (!takes_part) return [] {};
            const at::Tensor in = at::zeros({n * piece});
            const at::Tensor out = at::zeros({n * piece});
            return [in, out] {
              std::memcpy(out.mutable_data_ptr(), in.const_data_ptr(), in.nbytes());
            };
          }};
}

std::string measure_rank(Communicator& world, const BenchOptions& options) {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const int n = world.size();
  const bool first = world.rank() == 0;
  const std::array contenders = {over_communicator("thread", world), copies("copy", n, true),
                                 copies("copy by one", n, first)};
  return measure(world, contenders, options).dump();
}

}  // namespace
}  // namespace quatrain

int main(int argc, char** argv) {
  quatrain::BenchOptions options;
  int ranks = 2;
  CLI::App app("Communication between threads, beside plain copies");
  app.add_option("--ranks", ranks);
  quatrain::add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  std::string result;  // of rank 0
  quatrain::run_thread_ranks(ranks, {}, [&](std::unique_ptr<quatrain::Communicator> world) {
    const std::string mine = quatrain::measure_rank(*world, options);
    if (world->rank() == 0) result = mine;
  });
  std::printf("%s\n", result.c_str());
  return 0;
}
