// SPDX-License-Identifier: Apache-2.0
// A checkpoint of one geometry, taken up by another: the same bits behind the load, the
// uninterrupted run's numbers behind three more steps.
#pragma once
#include <string>
#include <vector>

#include "quatrain/checkpoint/manifest.h"
#include "quatrain/checkpoint/testing/memory_file_system.h"
#include "tests/zero/geometry_run.h"

namespace quatrain {

// Data parallelism, ZeRO, hybrid sharding, tensor and sequence parallelism, pipelines: 24, of up to
// 8 ranks, for models of four layers.
std::vector<Geometry> resume_geometries();

// Experts on one rank, as dense matrices, on ranks of their own and folded across tp: 8.
std::vector<Geometry> expert_resume_geometries();

class ResumePairs {
 public:
  // Runs all five steps on one rank.
  explicit ResumePairs(Recipe recipe);
  // Two steps, and a checkpoint.
  void save(const Geometry& from);
  // Empty, or what is not as it was.
  std::string fault(const Geometry& from, const Geometry& to);
  // The same by the ranks of any backend; files lie where all of them see them.
  void save(const Geometry& from, FileSystem& files, Communicator& world) const;
  std::string fault(const Geometry& from, const Geometry& to, FileSystem& files,
                    Communicator& world) const;
  double worst() const { return worst_; }

 private:
  TrainingState state(const RankJob& job) const;
  Recipe recipe_;
  RunResult whole_;
  testing::MemoryFileSystem files_;
  mutable double worst_ = 0.0;  // of numbers, relative
};

}  // namespace quatrain
