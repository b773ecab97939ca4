// SPDX-License-Identifier: Apache-2.0
// Token files: what is written is read, what is damaged is named, offsets beyond 32 bits.
#include "quatrain/data/token_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/data/sampler.h"
#include "quatrain/data/testing/scratch.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Scratch;
using Ids = std::vector<std::int64_t>;

Ids read_all(const TokenFile& file) {
  Ids ids(static_cast<std::size_t>(file.num_tokens()));
  file.read(0, ids);
  return ids;
}
std::int64_t at(const TokenFile& file, std::int64_t position) {
  Ids id(1);
  file.read(position, id);
  return id[0];
}
template <class T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(T));
}
std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t count,
                 const std::vector<std::uint16_t>& ids) {
  std::string content;
  for (const std::int32_t word : {magic, version, count}) put(content, word);
  content.resize(1024);
  for (const std::uint16_t id : ids) put(content, id);
  return content;
}
fs::path write_megatron(const Scratch& scratch, const std::vector<Ids>& documents,
                        std::int64_t vocab = 1000) {
  MegatronWriter writer(scratch.path("m"), vocab);
  for (const Ids& ids : documents) writer.add_document(ids);
  writer.finish();
  return scratch.path("m");
}
std::string open_message(const fs::path& path, TokenFormat format = TokenFormat::kAuto) {
  return message_of<DataError>([&] { open_token_file(path, format); });
}

TEST(MegatronTest, WrittenAndRead) {
  const Scratch scratch;
  const fs::path prefix = write_megatron(scratch, {{1, 2, 3}, {}, {4, 999}});
  for (const char* suffix : {"", ".bin", ".idx"}) {
    const auto file = open_token_file(fs::path(prefix) += suffix, TokenFormat::kAuto);
    EXPECT_EQ(file->format(), "megatron");
    EXPECT_EQ(file->dtype(), "u16");
    EXPECT_THAT(read_all(*file), ElementsAre(1, 2, 3, 4, 999));
    EXPECT_THAT(file->document_begins(), ElementsAre(0, 3, 3, 5));
  }
}

TEST(MegatronTest, WideVocabulariesAreStoredWide) {
  const Scratch scratch;
  const auto file =
      open_token_file(write_megatron(scratch, {{70000, 1}}, 70001), TokenFormat::kMegatron);
  EXPECT_EQ(file->dtype(), "i32");
  EXPECT_THAT(read_all(*file), ElementsAre(70000, 1));
}

TEST(MegatronTest, NothingIsLeftWithoutFinish) {
  const Scratch scratch;
  {
    MegatronWriter writer(scratch.path("m"), 10);
    writer.add_document(Ids{1});
  }
  EXPECT_TRUE(fs::is_empty(scratch.folder()));
}

TEST(MegatronTest, case_113_IdsThatDoNotFitAreRefusedWhenWritten) {
  const Scratch scratch;
  MegatronWriter writer(scratch.path("m"), 65499);
  EXPECT_THAT(message_of<DataError>([&] {
                writer.add_document(Ids{1, 70000});
              }),
              HasSubstr("70000"));
  EXPECT_THAT(message_of<DataError>([&] { writer.add_document(Ids{-1}); }), HasSubstr("-1"));
}

TEST(MegatronTest, case_113_AnotherWidthIsRefused) {
  const Scratch scratch;
  const fs::path idx = write_megatron(scratch, {{1, 2, 3}, {4, 5}}) += ".idx";
  std::string content = read_file(idx);
  content[17] = 4;  // i32 instead of u16
  scratch.write("m.idx", content);
  EXPECT_THAT(open_message(idx), HasSubstr(idx.string()));
  // 32-bit ids under nanoGPT's name.
  std::string wide;
  for (std::int32_t id = 1; id < 100; ++id) put(wide, id);
  EXPECT_THAT(open_message(scratch.write("n.bin", wide)), HasSubstr("32-bit"));
  // llm.c's magic says 16 bits, the size 32.
  std::string other = llmc(20240520, 1, 3, {1, 0, 2, 0, 3, 0});
  EXPECT_THAT(open_message(scratch.write("l.bin", other)), HasSubstr("another width"));
}

TEST(MegatronTest, DamagedIndexesAreNamedWithTheRule) {
  const Scratch scratch;
  const fs::path idx = write_megatron(scratch, {{1, 2, 3}, {4, 5}, {6}}) += ".idx";
  const std::string good = read_file(idx);
  const auto broken = [&](std::size_t offset, auto value) {
    std::string content = good;
    std::memcpy(content.data() + offset, &value, sizeof(value));
    scratch.write("m.idx", content);
    const std::string message = open_message(idx);
    EXPECT_THAT(message, HasSubstr(idx.string()));
    return message;
  };
  EXPECT_THAT(broken(0, 'X'), HasSubstr("MMIDIDX"));
  EXPECT_THAT(broken(9, std::uint64_t{2}), HasSubstr("version 2"));
  EXPECT_THAT(broken(17, std::uint8_t{7}), HasSubstr("float"));
  EXPECT_THAT(broken(17, std::uint8_t{99}), HasSubstr("type code 99"));
  EXPECT_THAT(broken(18, std::uint64_t{4}), HasSubstr("4 sequences"));
  EXPECT_THAT(broken(18, ~std::uint64_t{0}), HasSubstr("truncated"));
  EXPECT_THAT(broken(26, std::uint64_t{1} << 61U), HasSubstr("truncated"));
  EXPECT_THAT(broken(34, std::int32_t{-3}), HasSubstr("length -3"));
  EXPECT_THAT(broken(34, std::int32_t{2}), HasSubstr("points at byte"));
  EXPECT_THAT(broken(34 + 12, std::int64_t{2}), HasSubstr("sequence 0 points at byte 2"));
  EXPECT_THAT(broken(34 + 12 + 8, std::int64_t{1} << 60U), HasSubstr("sequence 1 points"));
  EXPECT_THAT(broken(34 + 36, std::int64_t{1}), HasSubstr("document boundary 0"));
  EXPECT_THAT(broken(34 + 36 + 8, std::int64_t{9}), HasSubstr("document boundary 1"));
  EXPECT_THAT(broken(34 + 36 + 24, std::int64_t{2}), HasSubstr("end at sequence 2 of 3"));
  for (std::size_t size = 0; size < good.size(); ++size) {
    scratch.write("m.idx", good.substr(0, size));
    EXPECT_THAT(open_message(idx), HasSubstr(idx.string())) << size;
  }
  scratch.write("m.idx", good);
  const std::string tokens = read_file(scratch.path("m.bin"));
  for (const std::string& bin : {tokens.substr(0, 11), tokens + "xx", std::string()}) {
    scratch.write("m.bin", bin);
    EXPECT_THAT(open_message(idx), HasSubstr("the .bin has")) << bin.size();
  }
  fs::remove(scratch.path("m.bin"));
  EXPECT_THAT(open_message(idx), HasSubstr("m.bin is missing"));
}

TEST(LlmcTest, BothMagics) {
  const Scratch scratch;
  const auto narrow =
      open_token_file(scratch.write("a.bin", llmc(20240520, 1, 3, {7, 65535, 9})), {});
  EXPECT_EQ(narrow->format(), "llmc");
  EXPECT_THAT(read_all(*narrow), ElementsAre(7, 65535, 9));
  const auto wide = open_token_file(scratch.write("b.bin", llmc(20240801, 7, 2, {1, 2, 3, 0})), {});
  EXPECT_EQ(wide->dtype(), "u32");
  EXPECT_THAT(read_all(*wide), ElementsAre(0x20001, 3));
  EXPECT_TRUE(wide->document_begins().empty());
}

TEST(LlmcTest, DamagedFilesAreNamedWithTheRule) {
  const Scratch scratch;
  const auto message = [&](const std::string& content, TokenFormat format = TokenFormat::kAuto) {
    return open_message(scratch.write("a.bin", content), format);
  };
  EXPECT_THAT(message(llmc(20240520, 2, 1, {7})), HasSubstr("version 2"));
  EXPECT_THAT(message(llmc(20240520, 1, 4, {7, 8, 9})), HasSubstr("truncated"));
  EXPECT_THAT(message(llmc(20240520, 1, 2, {7, 8, 9})), HasSubstr("2 ids"));
  EXPECT_THAT(message(llmc(20240522, 1, 1, {7})), HasSubstr("an evaluation set"));
  EXPECT_THAT(message(llmc(20240326, 1, 1, {7})), HasSubstr("model weights"));
  EXPECT_THAT(message(llmc(20240520, 1, 1, {7}).substr(0, 500)), HasSubstr("header"));
  EXPECT_THAT(message(llmc(1, 1, 1, {7}), TokenFormat::kLlmc), HasSubstr("magic 1"));
  EXPECT_THAT(message(llmc(20240520, 1, 1, {7}), TokenFormat::kNanoGpt), HasSubstr("llm.c"));
}

TEST(NanoGptTest, ReadsAndRefuses) {
  const Scratch scratch;
  std::string content;
  for (const int id : {5, 6, 65535}) put(content, static_cast<std::uint16_t>(id));
  const auto file = open_token_file(scratch.write("a.bin", content), {});
  EXPECT_EQ(file->format(), "nanogpt");
  EXPECT_THAT(read_all(*file), ElementsAre(5, 6, 65535));
  EXPECT_THAT(open_message(scratch.write("b.bin", content + "x")), HasSubstr("7 bytes"));
  EXPECT_THAT(open_message(scratch.write("c.bin", "")), HasSubstr("empty"));
  EXPECT_THAT(open_message(scratch.write("d.npy", content)), HasSubstr("not a token file"));
  EXPECT_THROW(open_token_file(scratch.path("none.bin"), {}), ConfigError);
  Ids ids(2);
  EXPECT_THROW(file->read(2, ids), DataError);
  EXPECT_THROW(file->read(-1, ids), DataError);
  EXPECT_THROW(file->read(std::numeric_limits<std::int64_t>::max(), ids), DataError);
}

// Writes `ids` at token positions of a file that is otherwise a hole.
void write_sparse(const fs::path& path, std::int64_t width, std::int64_t tokens,
                  const std::vector<std::pair<std::int64_t, std::int64_t>>& ids) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, tokens * width), 0);
  for (const auto& [position, id] : ids) {
    ASSERT_EQ(::pwrite(fd, &id, static_cast<std::size_t>(width), position * width), width);
  }
  ::close(fd);
}

TEST(TokenFileTest, case_104_PositionsBeyond32Bits) {
  const Scratch scratch;
  const std::int64_t a = (1LL << 31) - 1, b = 1LL << 31, c = (1LL << 32) + 5, tokens = c + 10;
  write_sparse(scratch.path("n.bin"), 2, tokens, {{a, 111}, {b, 222}, {c, 333}, {c + 1, 334}});
  const auto by_index = open_token_file(scratch.path("n.bin"), {});
  EXPECT_EQ(by_index->num_tokens(), tokens);
  EXPECT_EQ(at(*by_index, a), 111);
  EXPECT_EQ(at(*by_index, b), 222);
  EXPECT_EQ(at(*by_index, c), 333);
  // By sample: the one that holds the position, of any length.
  for (const std::int64_t seq_len : {1024, 1000}) {
    Ids row(static_cast<std::size_t>(seq_len) + 1);
    by_index->read(b / seq_len * seq_len, row);
    EXPECT_EQ(row[static_cast<std::size_t>(b % seq_len)], 222);
    EXPECT_EQ(num_samples(tokens, seq_len), (tokens - 2) / seq_len + 1);
  }
  // Two files laid end to end: positions of the second are beyond 2^33.
  std::vector<std::unique_ptr<TokenFile>> files;
  files.push_back(open_token_file(scratch.path("n.bin"), {}));
  files.push_back(open_token_file(scratch.path("n.bin"), {}));
  const auto merged = concatenate(std::move(files));
  EXPECT_EQ(merged->num_tokens(), 2 * tokens);
  for (const std::int64_t base : {std::int64_t{0}, tokens}) {
    EXPECT_EQ(at(*merged, base + a), 111);
    EXPECT_EQ(at(*merged, base + b), 222);
    EXPECT_EQ(at(*merged, base + c), 333);
  }
  Ids across(2 * 10);
  merged->read(tokens - 10, across);
  EXPECT_EQ(across[0], 333);
  EXPECT_EQ(across[1], 334);
}

TEST(TokenFileTest, case_104_MegatronPointersBeyond32Bits) {
  const Scratch scratch;
  const std::int32_t length = 1 << 30;
  const std::int64_t b = 1LL << 31, c = (1LL << 32) + 5, tokens = 5LL * length;
  write_sparse(scratch.path("m.bin"), 2, tokens, {{b - 1, 111}, {b, 222}, {c, 333}});
  std::string idx("MMIDIDX\0\0", 9);
  put(idx, std::uint64_t{1});
  put(idx, std::uint8_t{8});
  put(idx, std::uint64_t{5});
  put(idx, std::uint64_t{6});
  for (int i = 0; i < 5; ++i) put(idx, length);
  for (std::int64_t i = 0; i < 5; ++i) put(idx, i * length * 2);
  for (std::int64_t i = 0; i < 6; ++i) put(idx, i);
  scratch.write("m.idx", idx);
  const auto file = open_token_file(scratch.path("m"), {});
  EXPECT_EQ(at(*file, b - 1), 111);
  EXPECT_EQ(at(*file, b), 222);
  EXPECT_EQ(at(*file, c), 333);
  EXPECT_EQ(file->document_begins()[4], 1LL << 32);
}

TEST(TokenFileTest, FoldersAreReadInTheOrderOfNames) {
  const Scratch scratch;
  scratch.write("s/2.bin", llmc(20240520, 1, 2, {3, 4}));
  scratch.write("s/1.bin", llmc(20240520, 1, 2, {1, 2}));
  EXPECT_THAT(read_all(*open_token_file(scratch.path("s"), {})), ElementsAre(1, 2, 3, 4));
}

TEST(TokenFileTest, case_122_IdsOutsideTheVocabularyAreNamed) {
  const Scratch scratch;
  Ids ids(50000, 1);
  ids[43210] = 250;
  const auto file = open_token_file(write_megatron(scratch, {ids}, 65000), {});
  EXPECT_NO_THROW(check_ids(*file, 251));
  const std::string message = message_of<DataError>([&] { check_ids(*file, 250); });
  EXPECT_THAT(message, HasSubstr(file->path().string()));
  EXPECT_THAT(message, HasSubstr("token 43210 has id 250"));
  std::string content;
  put(content, std::uint16_t{65535});
  const auto last = open_token_file(scratch.write("n.bin", content), {});
  EXPECT_THAT(message_of<DataError>([&] { check_ids(*last, 65535); }), HasSubstr("id 65535"));
}

TEST(TokenFileTest, case_112_InspectCountsAndWarns) {
  const Scratch scratch;
  const auto file = open_token_file(write_megatron(scratch, {{1, 2, 9}, {4, 9}}), {});
  const TokenFileFacts facts = inspect(*file, 9);
  EXPECT_EQ(facts.format, "megatron");
  EXPECT_EQ(facts.dtype, "u16");
  EXPECT_EQ(facts.tokens, 5);
  EXPECT_EQ(facts.documents, 2);
  EXPECT_EQ(facts.max_id, 9);
  EXPECT_EQ(facts.eod_count, 2);
  EXPECT_TRUE(inspect_warnings(facts, 9).empty());
  EXPECT_THAT(inspect_warnings(inspect(*file, 8), 8), ElementsAre(HasSubstr("id 8 never occurs")));
  const auto flat = open_token_file(scratch.write("f.bin", llmc(20240520, 1, 4, {9, 1, 9, 2})), {});
  EXPECT_EQ(inspect(*flat, 9).documents, 2);
}

}  // namespace
}  // namespace quatrain
