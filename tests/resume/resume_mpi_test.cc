// SPDX-License-Identifier: Apache-2.0
// Checkpoints across geometries under mpirun, in files of a folder that all ranks see.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "quatrain/checkpoint/exchange.h"
#include "quatrain/comm/mpi/mpi_test_main.h"
#include "quatrain/engine/rank_thread.h"
#include "tests/pipeline/grid.h"
#include "tests/resume/pairs.h"

namespace quatrain {
namespace {

// The same paths, below a folder of this test.
class Below final : public FileSystem {
 public:
  explicit Below(Path folder) : folder_(std::move(folder)) {}
  int create(const Path& path) override { return files_.create(at(path)); }
  int open(const Path& path) override { return files_.open(at(path)); }
  int close(int file) override { return files_.close(file); }
  std::int64_t write(int file, std::span<const std::byte> bytes) override {
    return files_.write(file, bytes);
  }
  std::int64_t read(int file, std::span<std::byte> into, std::int64_t offset) override {
    return files_.read(file, into, offset);
  }
  std::int64_t size(int file) override { return files_.size(file); }
  int sync(int file) override { return files_.sync(file); }
  int make_folder(const Path& path) override { return files_.make_folder(at(path)); }
  int rename(const Path& from, const Path& to) override { return files_.rename(at(from), at(to)); }
  int remove(const Path& path) override { return files_.remove(at(path)); }
  int sync_folder(const Path& path) override { return files_.sync_folder(at(path)); }
  int list(const Path& path, std::vector<std::string>& names) override {
    return files_.list(at(path), names);
  }
  std::int64_t free_bytes(const Path& path) override { return files_.free_bytes(at(path)); }

 private:
  Path at(const Path& path) const { return folder_ / path.relative_path(); }
  Path folder_;
  PosixFileSystem files_;
};

TEST(ResumeMpi, PairsOfGeometries) {
  const RankThread prologue({.threads = 1});
  const std::unique_ptr<Communicator> world = test_world().communicator();
  const std::string name = text_of_first(*world, "quatrain-resume-" + std::to_string(getpid()));
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / name;
  Below files(folder);
  const ResumePairs pairs(
      {.spec = with_layers(tensor_gpt2(), 4),
       .optimizer = {.name = "adamw", .lr = 1e-3, .weight_decay = 0.1, .max_norm = 0.5},
       .global_batch = 16});
  std::vector<Geometry> here;
  for (const Geometry& geometry : resume_geometries()) {
    if (geometry.ranks() == world->size()) here.push_back(geometry);
  }
  ASSERT_GE(here.size(), 4U);
  for (std::size_t i = 0; i < here.size(); ++i) {
    pairs.save(here[i], files, *world);
    const Geometry& to = here[(i + 1) % here.size()];
    EXPECT_EQ(pairs.fault(here[i], to, files, *world), "") << here[i].name() << to.name();
  }
  world->barrier().wait();
  if (world->rank() == 0) std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace quatrain
