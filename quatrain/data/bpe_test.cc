// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE against the `tokenizers` package on vocabularies that the package trains here, and
// what damaged or unsupported tokenizer files are answered with.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/data/bpe.h"
#include "quatrain/data/bpe_spec.h"
#include "quatrain/data/nfc.h"
#include "quatrain/data/testing/scratch.h"
#include "quatrain/data/testing/tricky.h"
#include "quatrain/data/tokenizer.h"

namespace quatrain {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Scratch;
using Ids = std::vector<std::int64_t>;

// What the package made, once for all tests.
class BpeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = new Scratch;
    const std::string command =
        fmt::format("{} {}/quatrain/data/testing/make_bpe_cases.py {}", QUATRAIN_PYTHON,
                    QUATRAIN_SOURCE_DIR, scratch_->folder().string());
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  static void TearDownTestSuite() { delete scratch_; }

  static void expect_equal(const std::string& variant, bool gives_back) {
    const auto folder = scratch_->path(variant);
    const auto tokenizer = open_tokenizer(folder.string());
    const json cases = json::parse(read_file(folder / "cases.json"));
    ASSERT_GT(cases.size(), 250U);
    std::size_t wrong = 0;
    for (const json& one : cases) {
      const auto& text = one["text"].get_ref<const std::string&>();
      const auto want = one["ids"].get<Ids>();
      const Ids got = tokenizer->encode(text);
      if (got != want && ++wrong <= 5) {
        const auto at = std::mismatch(got.begin(), got.end(), want.begin(), want.end());
        const auto done = std::span(got).first(static_cast<std::size_t>(at.first - got.begin()));
        ADD_FAILURE() << variant << ": ids differ after \""
                      << json(tokenizer->decode(done))
                             .dump(-1, ' ', true, json::error_handler_t::replace)
                             .substr(0, 4000)
                             .substr(0, 200)
                      << "\" of " << text.size() << " bytes, at byte "
                      << tokenizer->decode(done).size() << ", before "
                      << json(
                             text.substr(std::min(text.size(), tokenizer->decode(done).size()), 24))
                             .dump(-1, ' ', true, json::error_handler_t::replace);
      }
      if (gives_back) {
        ASSERT_EQ(tokenizer->decode(got), text);
      }
    }
    EXPECT_EQ(wrong, 0U) << "of " << cases.size();
  }
  static std::string text_of(const std::string& variant) {
    return read_file(scratch_->path(variant) / "tokenizer.json");
  }

  static Scratch* scratch_;
};
Scratch* BpeTest::scratch_ = nullptr;

TEST_F(BpeTest, Gpt2PatternEqualsThePackage) { expect_equal("gpt2", true); }
TEST_F(BpeTest, Llama3PatternWithIgnoreMergesEqualsThePackage) { expect_equal("llama3", true); }
TEST_F(BpeTest, QwenPatternWithNfcEqualsThePackage) { expect_equal("qwen", false); }
TEST_F(BpeTest, VocabAndMergesFilesEqualThePackage) { expect_equal("gpt2-files", true); }

TEST_F(BpeTest, EveryTextComesBack) {
  for (const char* variant : {"gpt2", "llama3"}) {
    const auto tokenizer = open_tokenizer(scratch_->path(variant).string());
    for (const std::string& text : testing::tricky_texts()) {
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    }
    for (const std::string& text : testing::broken_texts()) {
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    }
  }
}

TEST_F(BpeTest, BytesThatAreNoUtf8StandAlone) {
  const auto tokenizer = open_tokenizer(scratch_->path("gpt2").string());
  Ids want = tokenizer->encode("in the");
  for (const char* part : {"\xFF\xC3", " beginning"}) {
    const Ids ids = tokenizer->encode(part);
    want.insert(want.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(tokenizer->encode("in the\xFF\xC3 beginning"), want);
}

TEST_F(BpeTest, EndOfDocumentAndVocabulary) {
  const auto tokenizer = open_tokenizer((scratch_->path("gpt2") / "tokenizer.json").string());
  EXPECT_EQ(tokenizer->kind(), "bpe");
  ASSERT_TRUE(tokenizer->eod_id().has_value());
  EXPECT_EQ(tokenizer->decode(Ids{*tokenizer->eod_id()}), "<|endoftext|>");
  EXPECT_EQ(tokenizer->encode("a<|endoftext|>b")[1], *tokenizer->eod_id());
  EXPECT_EQ(tokenizer->vocab_size(), tokenizer->encode("<tool>")[0] + 1);
  EXPECT_EQ(tokenizer->decode(Ids{tokenizer->vocab_size() + 7}), "\xEF\xBF\xBD");
}

TEST_F(BpeTest, EosTokenOfTheConfigurationEndsDocuments) {
  const Scratch scratch;
  scratch.write("tokenizer.json", text_of("gpt2"));
  scratch.write("tokenizer_config.json", R"({"eos_token": {"content": "<tool>"}})");
  const auto tokenizer = open_tokenizer(scratch.folder().string());
  EXPECT_EQ(tokenizer->decode(Ids{tokenizer->eod_id().value()}), "<tool>");
}

TEST_F(BpeTest, SavedAndOpenedAgain) {
  const auto tokenizer = open_tokenizer(scratch_->path("qwen").string());
  const Scratch copy;
  tokenizer->save(copy.folder());
  const auto again = open_tokenizer(copy.folder().string());
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(again->encode("In the beginning 123"), tokenizer->encode("In the beginning 123"));
}

TEST_F(BpeTest, ThreadsShareOneTokenizer) {
  const auto tokenizer = open_tokenizer(scratch_->path("gpt2").string());
  const auto texts = testing::tricky_texts();
  std::vector<Ids> want;
  const auto fresh = open_tokenizer(scratch_->path("gpt2").string());
  for (const std::string& text : texts) want.push_back(fresh->encode(text));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < texts.size(); ++i)
        wrong += tokenizer->encode(texts[i]) != want[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(BpeTest, UnsupportedAndDamagedFilesAreNamed) {
  const json good = json::parse(text_of("gpt2"));
  const auto answer = [](const json& root) {
    const Scratch scratch;
    const auto file = scratch.write("tokenizer.json", root.dump());
    return message_of<DataError>([&] { open_tokenizer(file.string()); });
  };
  const auto changed = [&](const char* pointer, const json& value) {
    json root = good;
    root[json::json_pointer(pointer)] = value;
    return answer(root);
  };
  EXPECT_THAT(changed("/pre_tokenizer", json{{"type", "Metaspace"}}), HasSubstr("\"Metaspace\""));
  EXPECT_THAT(changed("/pre_tokenizer/add_prefix_space", true), HasSubstr("add_prefix_space"));
  EXPECT_THAT(changed("/pre_tokenizer", nullptr), HasSubstr("pre-tokenizer"));
  EXPECT_THAT(changed("/normalizer", json{{"type", "Lowercase"}}), HasSubstr("\"Lowercase\""));
  EXPECT_THAT(changed("/model/type", "WordPiece"), HasSubstr("WordPiece"));
  EXPECT_THAT(changed("/model/byte_fallback", true), HasSubstr("byte_fallback"));
  EXPECT_THAT(changed("/model/vocab", json::object()), HasSubstr("no vocabulary"));
  EXPECT_THAT(changed("/model/vocab/a", -5), HasSubstr("\"a\" is -5"));
  EXPECT_THAT(changed("/model/vocab/a", 1.5), HasSubstr("no integer"));
  EXPECT_THAT(changed("/model/vocab/a", good["model"]["vocab"]["b"]), HasSubstr("same id"));
  EXPECT_THAT(changed("/model/vocab/a", 1LL << 40), HasSubstr("not within"));
  EXPECT_THAT(changed("/model/merges/3", "nosuch token"), HasSubstr("merge 3"));
  EXPECT_THAT(changed("/model/merges/3", 7), HasSubstr("merge 3"));
  EXPECT_THAT(changed("/added_tokens/0/lstrip", true), HasSubstr("lstrip"));
  const json broken = {{"type", "Sequence"},
                       {"pretokenizers",
                        {{{"type", "Split"},
                          {"pattern", {{"Regex", "a(b"}}},
                          {"behavior", "Isolated"},
                          {"invert", false}},
                         good["pre_tokenizer"]}}};
  EXPECT_THAT(changed("/pre_tokenizer", broken), HasSubstr("a(b"));
  const Scratch scratch;
  const auto cut = scratch.write("tokenizer.json", text_of("gpt2").substr(0, 5000));
  EXPECT_THAT(message_of<DataError>([&] { open_tokenizer(cut.string()); }),
              HasSubstr(cut.string()));
}

TEST(BpeMergerTest, LongAndShortPiecesMergeAlike) {
  // aa, aaaa, ab, and a merge that overlaps: the long path must agree with prefixes of the short.
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  tokens.insert(tokens.end(), {"aa", "aaaa", "ab", "aab"});
  const BpeMerger merger(
      tokens, {{'a', 'a', 256}, {256, 256, 257}, {'a', 'b', 258}, {'a', 258, 259}}, false);
  Ids ids;
  merger.encode(std::string(4001, 'a'), ids);
  EXPECT_EQ(ids.size(), 1001U);
  EXPECT_EQ(ids.front(), 257);
  EXPECT_EQ(ids.back(), 'a');
  Ids small;
  merger.encode("aaab", small);
  EXPECT_EQ(small, (Ids{256, 258}));
}

TEST(NfcTest, ComposesAndReorders) {
  EXPECT_EQ(to_nfc("A\xCC\x8A"), "\xC3\x85");
  EXPECT_EQ(to_nfc("\xE2\x84\xAB"), "\xC3\x85");                              // Angstrom sign
  EXPECT_EQ(to_nfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"), "\xEA\xB0\x81");  // Hangul
  EXPECT_EQ(to_nfc("a\xCC\x81\xCC\xA3"), "\xE1\xBA\xA1\xCC\x81");             // below before above
  EXPECT_EQ(to_nfc("\xE0\xA5\x98"), "\xE0\xA4\x95\xE0\xA4\xBC");  // an excluded composition
  EXPECT_TRUE(is_nfc_plainly("plain text, \xC3\xA9 \xE4\xBD\xA0"));
  EXPECT_FALSE(is_nfc_plainly("e\xCC\x81"));
}

}  // namespace
}  // namespace quatrain
