// SPDX-License-Identifier: Apache-2.0
// What strangers may rely on: docs/checkpoint_format.md, whose Python is run as it stands there.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "quatrain/base/file.h"
#include "quatrain/base/scratch_folder.h"
#include "quatrain/checkpoint/manifest.h"
#include "quatrain/checkpoint/rank_file.h"
#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/checkpoint/testing/memory_file_system.h"
#include "quatrain/checkpoint/testing/test_run.h"

namespace quatrain {
namespace {

using testing::TestRun;

// Writes every tensor, whole, to a file for us to compare.
constexpr std::string_view kRest = R"(

import sys
import safetensors.torch

manifest, tensors = read_checkpoint(sys.argv[1])
assert manifest["step"] == 10 and manifest["extra"] == {"loss": "0x1.8p+1"}
whole = {f"{kind}/{name}": values.contiguous() for (name, kind), values in tensors.items()}
safetensors.torch.save_file(whole, sys.argv[2])
)";

std::string documented_python() {
  const std::string page =
      read_file(std::filesystem::path(QUATRAIN_SOURCE_DIR) / "docs" / "checkpoint_format.md");
  constexpr std::string_view kFence = "```python\n";
  const std::size_t begin = page.find(kFence) + kFence.size();
  return page.substr(begin, page.find("```", begin) - begin);
}

class Format : public ::testing::Test {
 protected:
  ScratchFolder scratch_;
  const std::filesystem::path& folder_ = scratch_.path();
};

TEST_F(Format, PythonReadsWhatTheDocumentationSays) {
  TestRun run{.seed = 11, .ranks = 3, .shape = {.most_tensors = 12}};
  run.options.folder = folder_ / "run";
  PosixFileSystem files;
  run.save(files, 10);
  std::ofstream(folder_ / "read.py") << documented_python() << kRest;
  const std::string command =
      fmt::format("'{}' '{}' '{}' '{}' > '{}' 2>&1", QUATRAIN_PYTHON,
                  (folder_ / "read.py").string(), step_path(run, 10).string(),
                  (folder_ / "whole.safetensors").string(), (folder_ / "log.txt").string());
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(folder_ / "log.txt");
  const SafetensorsFile whole(folder_ / "whole.safetensors");
  const auto tensors = run.tensors(10);
  EXPECT_EQ(whole.header().tensors.size(), tensors.size());
  for (const auto& tensor : tensors) {
    const at::Tensor read = whole.tensor(tensor.id.kind + "/" + tensor.id.name);
    EXPECT_TRUE(testing::same_bits(read, tensor.values)) << to_string(tensor.id);
  }
}

// A general parser sees what ours does, and our strict reader takes the data files.
TEST_F(Format, IsPlainJsonAndPlainSafetensors) {
  TestRun run{.ranks = 3};
  run.options.folder = folder_ / "run";
  PosixFileSystem files;
  run.save(files, 10);
  const std::string text = read_file(step_path(run, 10) / kManifestName);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json.at("plan").at("zero"), 1);
  EXPECT_EQ(text.size() - text.find(",\n\"manifest_checksum\":"), 58U);
  std::size_t pieces = 0;
  for (const auto& tensor : json.at("tensors")) pieces += tensor.at("pieces").size();
  for (const auto& file : json.at("files")) {
    const SafetensorsFile opened(step_path(run, 10) / file.at("name").get<std::string>());
    EXPECT_EQ(opened.header().buffer_offset, file.at("header_bytes"));
    pieces -= opened.header().tensors.size();
  }
  EXPECT_EQ(pieces, 0U);
}

TEST(FileName, HasFiveDigits) {
  EXPECT_EQ(rank_file_name(3), "rank-00003.safetensors");
  EXPECT_EQ(piece_key({"a.weight", "exp_avg"}, {{0, 128}, {4, 4}}), "exp_avg/a.weight@0,128");
  EXPECT_EQ(piece_key({"a", "weight"}, {{}, {}}), "weight/a@");
}

}  // namespace
}  // namespace quatrain
