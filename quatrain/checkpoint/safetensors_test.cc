// SPDX-License-Identifier: Apache-2.0
// Files on disk: round trips, damage at every byte, row reads, crowded headers, failing writes.
#include "quatrain/checkpoint/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSlack = 8.0;
#else
constexpr double kSlack = 1.0;
#endif

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest()
      : folder_(std::filesystem::temp_directory_path() /
                fmt::format("quatrain_safetensors_{}", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~SafetensorsTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path(const std::string& name = "x.safetensors") const {
    return folder_ / name;
  }
  // Writes length, header and `buffer` as they are; the length may lie.
  std::filesystem::path raw(const std::string& header, const std::string& buffer,
                            std::uint64_t length) const {
    std::ofstream out(path("raw.safetensors"), std::ios::binary);
    for (int i = 0; i < 8; ++i) out.put(static_cast<char>((length >> (8 * i)) & 0xFF));
    out << header << buffer;
    return path("raw.safetensors");
  }
  std::filesystem::path plain(const std::string& content) const {
    std::ofstream(path("plain.safetensors"), std::ios::binary) << content;
    return path("plain.safetensors");
  }
  std::string message(const std::filesystem::path& file) const {
    try {
      SafetensorsFile{file};
    } catch (const DataError& error) {
      return error.what();
    }
    return "accepted";
  }

 private:
  std::filesystem::path folder_;
};

// A tensor of any dtype whose bytes are 0 .. 3 (valid for bool too).
at::Tensor sample(at::ScalarType dtype) {
  if (dtype == at::kBool) return at::arange(6).remainder(2).to(at::kBool).view({2, 3});
  return at::arange(6).to(at::kFloat).view({2, 3}).to(dtype);
}

TEST_F(SafetensorsTest, RoundTripsEveryDtype) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (at::ScalarType dtype : {at::kBool, at::kByte, at::kChar, at::kFloat8_e5m2,
                               at::kFloat8_e4m3fn, at::kShort, at::kHalf, at::kBFloat16, at::kInt,
                               at::kFloat, at::kComplexFloat, at::kDouble, at::kLong}) {
    tensors.emplace_back(fmt::format("t.{}", c10::toString(dtype)), sample(dtype));
  }
  tensors.emplace_back("scalar", at::ones({}, at::kFloat));
  tensors.emplace_back("empty", at::zeros({3, 0}, at::kFloat));
  tensors.emplace_back("strided", at::arange(12, at::kFloat).view({3, 4}).t());
  tensors.emplace_back("quote\"\\ and \xC3\xA9", at::arange(3));
  write_safetensors(path(), tensors, {{"format", "pt"}, {"note", "line\nbreak"}});

  const SafetensorsFile file(path());
  EXPECT_EQ(file.header().metadata.at("note"), "line\nbreak");
  EXPECT_EQ(file.header().tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(file.has(name));
    const at::Tensor read = file.tensor(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type());
    EXPECT_EQ(read.sizes(), tensor.sizes());
    if (read.numel() == 0) continue;
    EXPECT_EQ(std::memcmp(read.data_ptr(), tensor.contiguous().data_ptr(), read.nbytes()), 0);
  }
}

TEST_F(SafetensorsTest, WritesTheCanonicalForm) {
  write_safetensors(path(), {{"b", at::ones({1}, at::kByte)},
                             {"z", at::ones({1}, at::kFloat)},
                             {"a", at::ones({1}, at::kFloat)},
                             {"n", at::ones({1}, at::kLong)}});
  const std::string content = read_file(path());
  const std::string header = R"({"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                             R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
                             R"("z":{"dtype":"F32","shape":[1],"data_offsets":[12,16]},)"
                             R"("b":{"dtype":"U8","shape":[1],"data_offsets":[16,17]}})";
  const std::size_t padded = (header.size() + 7) / 8 * 8;
  ASSERT_EQ(content.size(), 8 + padded + 17);
  EXPECT_EQ(static_cast<std::size_t>(static_cast<unsigned char>(content[0])), padded % 256);
  EXPECT_EQ(content.substr(8, header.size()), header);
  EXPECT_EQ(content.substr(8 + header.size(), padded - header.size()),
            std::string(padded - header.size(), ' '));
}

TEST_F(SafetensorsTest, ReadsRowsAlone) {
  const at::Tensor x = at::arange(35, at::kFloat).view({7, 5});
  write_safetensors(path(), {{"byte", at::ones({1}, at::kByte)}, {"x", x}});
  const SafetensorsFile file(path());
  EXPECT_TRUE(file.rows("x", 2, 5).equal(x.narrow(0, 2, 3)));
  EXPECT_TRUE(file.rows("x", 0, 7).equal(x));
  EXPECT_EQ(file.rows("x", 7, 7).sizes(), (std::vector<std::int64_t>{0, 5}));
  EXPECT_THROW(file.rows("x", 3, 8), DataError);
  EXPECT_THROW(file.rows("x", -1, 2), DataError);
  EXPECT_THROW(file.rows("x", 3, 2), DataError);
  EXPECT_THROW(file.tensor("y"), DataError);
}

TEST_F(SafetensorsTest, ReadsUnalignedStartsAndOddBooleans) {
  const std::string header = R"({"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},)"
                             R"("x":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}})";
  const SafetensorsFile file(
      raw(header, std::string("\x02\x00\x01\x00\x00\x80\x3f", 7), header.size()));
  EXPECT_TRUE(file.tensor("a").equal(at::tensor({1, 0, 1}).to(at::kBool)));
  EXPECT_EQ(file.tensor("x").item<float>(), 1.0F);
}

TEST_F(SafetensorsTest, SubByteTensorsAreListedNotRead) {
  const std::string header = R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})";
  const SafetensorsFile file(raw(header, "x", header.size()));
  EXPECT_TRUE(file.has("a"));
  EXPECT_THROW(file.tensor("a"), DataError);
}

TEST_F(SafetensorsTest, NamesFileAndRuleOfDamage) {
  EXPECT_THAT(message(raw("{}", "x", 2)), AllOf(HasSubstr("raw.safetensors"), HasSubstr("extra")));
  EXPECT_THAT(message(raw("{}", "", 3)), HasSubstr("truncated"));
  EXPECT_THAT(message(raw("{}", "", 100'000'001)), HasSubstr("limit of 100000000"));
  EXPECT_THAT(message(raw("{}", "", ~0ULL)), HasSubstr("limit of 100000000"));
  EXPECT_EQ(message(raw("{}", "", 2)), "accepted");
  write_file_atomically(path("short"), "1234567");
  EXPECT_THAT(message(path("short")), HasSubstr("too short"));
  write_file_atomically(path("none"), "");
  EXPECT_THAT(message(path("none")), HasSubstr("too short"));
  EXPECT_THROW(SafetensorsFile(path("absent")), StorageError);
}

// Every prefix and every one-byte change of the header is refused or reads the same tensors.
TEST_F(SafetensorsTest, SurvivesTruncationAndFlippedBytes) {
  write_safetensors(path(), {{"w", at::arange(6, at::kFloat)}, {"b", at::ones({2})}});
  const std::string whole = read_file(path());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(message(plain(whole.substr(0, size))), "accepted") << size;
  }
  const std::size_t header_end = whole.size() - 32;
  for (std::size_t i = 0; i < header_end; ++i) {
    std::string broken = whole;
    broken[i] = static_cast<char>(broken[i] ^ 0x55);
    try {
      const SafetensorsFile file(plain(broken));
      for (const TensorEntry& entry : file.header().tensors) file.tensor(entry.name);
    } catch (const DataError&) {
    }
  }
}

TEST_F(SafetensorsTest, RefusesToWriteWhatItWouldNotRead) {
  const at::Tensor x = at::ones({1});
  EXPECT_THROW(write_safetensors(path(), {{"a", x}, {"a", x}}), BugError);
  EXPECT_THROW(write_safetensors(path(), {{"", x}}), BugError);
  EXPECT_THROW(write_safetensors(path(), {{"a\nb", x}}), BugError);
  EXPECT_THROW(write_safetensors(path(), {{"__metadata__", x}}), BugError);
  EXPECT_THROW(write_safetensors(path(), {{"\xFF", x}}), BugError);
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(SafetensorsTest, AFailedWriteLeavesTheOldFile) {
  write_safetensors(path(), {{"a", at::ones({4})}});
  const std::string before = read_file(path());
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 1 << 16;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_safetensors(path(), {{"a", at::ones({1 << 20})}}), StorageError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(read_file(path()), before);
  const auto entries = std::filesystem::directory_iterator(path().parent_path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
  EXPECT_THROW(write_safetensors(path("no/such/folder"), {{"a", at::ones({1})}}), StorageError);
}

TEST_F(SafetensorsTest, ReadsRowsOfMergedDims) {
  const at::Tensor cube = at::arange(24, at::kFloat).view({2, 3, 4});
  write_safetensors(path(), {{"cube", cube}, {"vector", at::arange(3)}});
  const SafetensorsFile file(path());
  EXPECT_TRUE(file.merged_rows("cube", 2, 5).equal(cube.view({6, 4}).narrow(0, 2, 3)));
  EXPECT_TRUE(file.merged_rows("cube", 0, 6).equal(cube.view({6, 4})));
  EXPECT_TRUE(file.merged_rows("vector", 1, 3).equal(file.rows("vector", 1, 3)));
  EXPECT_THROW(file.merged_rows("cube", 5, 7), DataError);
  EXPECT_THROW(file.rows("cube", 1, 3), DataError);
}

std::int64_t peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

// 900,000 one-byte tensors, a legal header of 61 MB: the reference takes 2.3 s and 752 MB.
TEST_F(SafetensorsTest, OpensACrowdedHeaderQuicklyAndSmall) {
  constexpr int kTensors = 900'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    fmt::format_to(std::back_inserter(header),
                   R"({}"t{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                   i == 0 ? "" : ",", i, i, i + 1);
  }
  header += "}";
  const std::filesystem::path file_path = raw(header, std::string(kTensors, 'x'), header.size());
  header = std::string();
  const std::int64_t before = peak_rss_bytes();
  const std::clock_t start = std::clock();
  const SafetensorsFile file(file_path);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;  // of CPU
  const std::int64_t grown = peak_rss_bytes() - before;
  EXPECT_EQ(file.header().tensors.size(), static_cast<std::size_t>(kTensors));
  EXPECT_TRUE(file.has("t899999"));
  EXPECT_LT(static_cast<double>(grown), kSlack * (256LL << 20));
  EXPECT_LT(seconds, 1.0 * kSlack);  // 0.4 to 0.5 on the cores it was written on
  RecordProperty("open_cpu_ms", static_cast<int>(1e3 * seconds));
  RecordProperty("grown_mib", static_cast<int>(grown >> 20));
}

}  // namespace
}  // namespace quatrain
