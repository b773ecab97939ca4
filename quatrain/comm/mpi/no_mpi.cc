// SPDX-License-Identifier: Apache-2.0
// The build without MPI (WITH_MPI=OFF): there is no such world.
#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/comm/mpi/mpi.h"

namespace quatrain {

struct MpiWorld::State {
  Launch launch;
};

MpiWorld::MpiWorld(const Launch& /*launch*/, MpiOptions /*options*/) {
  throw ConfigError(
      "this build has no MPI: install Open MPI (libopenmpi-dev, openmpi-bin) and build with "
      "WITH_MPI=ON, or run the ranks as threads of one process");
}
MpiWorld::~MpiWorld() = default;
std::unique_ptr<Communicator> MpiWorld::communicator() { return nullptr; }
const Launch& MpiWorld::launch() const { return state_->launch; }
void MpiWorld::end_job(int /*exit_code*/) { throw BugError("there is no MPI job"); }

}  // namespace quatrain
