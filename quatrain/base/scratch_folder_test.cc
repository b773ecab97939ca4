// SPDX-License-Identifier: Apache-2.0
#include "quatrain/base/scratch_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>

namespace quatrain {
namespace {

TEST(ScratchFolder, IsNewAndGoneWithAllItHolds) {
  std::optional<ScratchFolder> one(std::in_place);
  const ScratchFolder other;
  const std::filesystem::path path = one->path();
  EXPECT_NE(path, other.path());
  std::filesystem::create_directory(path / "below");
  std::ofstream(path / "below" / "file") << "text";
  one.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::is_empty(other.path()));
}

}  // namespace
}  // namespace quatrain
