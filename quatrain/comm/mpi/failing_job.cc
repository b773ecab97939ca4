// SPDX-License-Identifier: Apache-2.0
// A job that fails, for mpi_job_test:  failing_job die|throw|late RANK
// Every rank adds numbers up, with a rank's usual main(): a handler of SIGTERM, errors printed in
// one line, the job ended with exit code 69.
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/comm/mpi/mpi.h"

namespace quatrain {
namespace {

constexpr int kFailingStep = 3;
volatile std::sig_atomic_t terminated = 0;

void fail(std::string_view how) {
  if (how == "die") std::raise(SIGKILL);
  if (how == "throw") throw DataError("token 7 is outside the vocabulary");
  if (how == "late") std::this_thread::sleep_for(std::chrono::seconds(60));
}

void run(MpiWorld& world, std::string_view how, int failing_rank) {
  const auto comm = world.communicator();
  for (int step = 0; step < 1000; ++step) {
    if (step == kFailingStep && comm->rank() == failing_rank) fail(how);
    at::Tensor x = at::full({1000}, 1.0);
    comm->all_reduce(x, ReduceOp::kSum).wait();
  }
}

int main_of_rank(std::string_view how, int failing_rank) {
  std::signal(SIGTERM, [](int) { terminated = 1; });
  MpiOptions options;
  options.interrupted = [] { return terminated != 0; };
  MpiWorld world(discover_launch(process_environment), std::move(options));
  try {
    run(world, how, failing_rank);
  } catch (const std::exception& error) {
    log_error(fmt::format("rank {}: {}", world.launch().rank, error.what()));
    flush_log();
    world.end_job(69);
  }
  return 0;
}

}  // namespace
}  // namespace quatrain

int main(int argc, char** argv) {
  return argc == 3 ? quatrain::main_of_rank(argv[1], std::atoi(argv[2])) : 2;
}
