// SPDX-License-Identifier: Apache-2.0
// One rank of the communication benchmark under mpirun: the mpi backend beside MPI's own
// collectives, which are what a user would otherwise call. Rank 0 prints one JSON line.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "comm_measure.h"
#include "quatrain/comm/launch.h"
#include "quatrain/comm/mpi/mpi.h"

namespace quatrain {
namespace {

float* data(const at::Tensor& x) { return x.mutable_data_ptr<float>(); }

Step plain_mpi(const Communicator& comm, BenchOperation operation, std::int64_t piece) {
  const int n = comm.size();
  const int count = static_cast<int>(piece);
  const at::Tensor whole = at::zeros({n * piece});
  const at::Tensor other = at::zeros({n * piece});
  switch (operation) {
    case BenchOperation::kAllReduce:
      return [whole, all = n * count] {
        MPI_Allreduce(MPI_IN_PLACE, data(whole), all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      };
    case BenchOperation::kAllGather:
      return [whole, other, count] {
        MPI_Allgather(data(other), count, MPI_FLOAT, data(whole), count, MPI_FLOAT, MPI_COMM_WORLD);
      };
    case BenchOperation::kReduceScatter:
      return [whole, other, counts = std::vector<int>(static_cast<std::size_t>(n), count)] {
        MPI_Reduce_scatter(data(whole), data(other), counts.data(), MPI_FLOAT, MPI_SUM,
                           MPI_COMM_WORLD);
      };
    case BenchOperation::kAllToAll:
      return [whole, other, count] {
        MPI_Alltoall(data(whole), count, MPI_FLOAT, data(other), count, MPI_FLOAT, MPI_COMM_WORLD);
      };
    case BenchOperation::kSendRecv:
      return [whole, other, all = n * count, next = (comm.rank() + 1) % n,
              previous = (comm.rank() + n - 1) % n] {
        MPI_Sendrecv(data(whole), all, MPI_FLOAT, next, 0, data(other), all, MPI_FLOAT, previous, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      };
  }
  return {};
}

std::string measure_rank(Communicator& world, const BenchOptions& options) {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const Contender plain = {"Open MPI", [&world](BenchOperation operation, std::int64_t piece) {
                             return plain_mpi(world, operation, piece);
                           }};
  const std::array contenders = {over_communicator("mpi", world), plain};
  return measure(world, contenders, options).dump();
}

}  // namespace
}  // namespace quatrain

int main(int argc, char** argv) {
  quatrain::BenchOptions options;
  CLI::App app("Communication between processes, beside MPI's own");
  quatrain::add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  quatrain::MpiWorld mpi(quatrain::discover_launch(quatrain::process_environment));
  const auto world = mpi.communicator();
  const std::string result = quatrain::measure_rank(*world, options);
  if (world->rank() == 0) std::printf("%s\n", result.c_str());
  return 0;
}
