// SPDX-License-Identifier: Apache-2.0
// The byte and sentencepiece tokenizers: everything comes back, damaged files are named.
#include "quatrain/data/tokenizer.h"

#include <gmock/gmock.h>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/data/testing/scratch.h"
#include "quatrain/data/testing/tricky.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::Scratch;
using Ids = std::vector<std::int64_t>;

std::string corpus() {
  const std::vector<std::string> words = {
      "in",   "the",  "beginning", "was",   "light", "and",  "waters",  "upon",    "face", "of",
      "deep", "said", "let",       "there", "be",    "good", "evening", "morning", "day",  "night"};
  const RandomStream random(3, "corpus");
  std::string text;
  for (std::uint64_t i = 0; i < 6000; ++i) {
    text += words[random.below(i, words.size())];
    text += i % 11 == 10 ? ".\n" : i % 37 == 0 ? "  " : " ";
  }
  return text;
}

class SentencepieceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = new Scratch;
    const auto text = scratch_->write("text,with comma.txt", corpus());
    train_sentencepiece({text}, 400, scratch_->path("tokenizer.model"), 2);
  }
  static void TearDownTestSuite() { delete scratch_; }
  static Scratch* scratch_;
};
Scratch* SentencepieceTest::scratch_ = nullptr;

TEST_F(SentencepieceTest, EveryTextComesBack) {
  const auto tokenizer = open_tokenizer(scratch_->folder().string());
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  EXPECT_EQ(tokenizer->vocab_size(), 400);
  for (const std::string& text : testing::tricky_texts()) {
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
  for (const std::string& text : testing::broken_texts()) {
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
  const std::string text = corpus();
  const Ids ids = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_LT(ids.size() * 4, text.size());
}

TEST_F(SentencepieceTest, EndOfDocumentIsNeverMadeFromText) {
  const auto tokenizer = open_tokenizer(scratch_->path("tokenizer.model").string());
  ASSERT_TRUE(tokenizer->eod_id().has_value());
  for (const std::int64_t id : tokenizer->encode("a</s>b <s>")) {
    EXPECT_NE(id, *tokenizer->eod_id());
  }
}

TEST_F(SentencepieceTest, DamagedModelsAreNamed) {
  const std::string model = read_file(scratch_->path("tokenizer.model"));
  const Scratch damaged;
  for (const std::string& content : {std::string("no model"), std::string(),
                                     model.substr(0, model.size() / 2), model.substr(0, 100)}) {
    const auto file = damaged.write("x.model", content);
    EXPECT_THAT(message_of<DataError>([&] { open_tokenizer(file.string()); }),
                HasSubstr(file.string()))
        << content.size();
  }
}

TEST_F(SentencepieceTest, ImpossibleVocabularyIsAnError) {
  const auto text = scratch_->write("small.txt", "a b c\n");
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { train_sentencepiece({text}, 5000, scratch_->path("y.model"), 1); }),
              HasSubstr("5000"));
  EXPECT_FALSE(std::filesystem::exists(scratch_->path("y.model")));
}

TEST(ByteTokenizerTest, EveryTextComesBack) {
  const auto tokenizer = open_tokenizer("bytes");
  for (const std::string& text : testing::tricky_texts()) {
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
  for (const std::string& text : testing::broken_texts()) {
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod_id(), 256);
  EXPECT_EQ(tokenizer->encode("aZ\xFF"), (Ids{97, 90, 255}));
}

TEST(ByteTokenizerTest, SavedAndOpenedAgain) {
  const Scratch scratch;
  open_tokenizer("bytes")->save(scratch.folder());
  const auto again = open_tokenizer(scratch.folder().string());
  EXPECT_EQ(again->kind(), "bytes");
  EXPECT_EQ(again->vocab_size(), 257);
}

TEST(OpenTokenizerTest, WhatIsNotThereIsAConfigurationError) {
  const Scratch empty;
  EXPECT_THAT(message_of<ConfigError>([&] { open_tokenizer("/no/such/file.json"); }),
              HasSubstr("/no/such/file.json"));
  EXPECT_THAT(message_of<ConfigError>([&] { open_tokenizer(empty.folder().string()); }),
              HasSubstr("tokenizer.json"));
  const auto other = empty.write("words.txt", "a");
  EXPECT_THAT(message_of<ConfigError>([&] { open_tokenizer(other.string()); }),
              HasSubstr("tokenizer.json"));
}

TEST(OpenTokenizerTest, case_122_TokenizerLargerThanTheModel) {
  const auto tokenizer = open_tokenizer("bytes");
  EXPECT_NO_THROW(check_vocab(*tokenizer, 257));
  EXPECT_THAT(message_of<DataError>([&] { check_vocab(*tokenizer, 256); }),
              HasSubstr("at least 257"));
}

}  // namespace
}  // namespace quatrain
