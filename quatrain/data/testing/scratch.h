// SPDX-License-Identifier: Apache-2.0
// A folder that a test may fill, gone when the test ends.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "quatrain/base/scratch_folder.h"

namespace quatrain::testing {

class Scratch {
 public:
  const std::filesystem::path& folder() const { return folder_.path(); }
  std::filesystem::path path(std::string_view name) const { return folder() / name; }
  std::filesystem::path write(std::string_view name, std::string_view content) const {
    std::filesystem::create_directories(path(name).parent_path());
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

 private:
  ScratchFolder folder_;
};

// The message of the Error that `f` throws; "" when it throws none.
template <class Error, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace quatrain::testing
