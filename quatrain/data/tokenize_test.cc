// SPDX-License-Identifier: Apache-2.0
// Text and JSONL into token files: what is skipped, what is refused, the same from any number of
// threads.
#include "quatrain/data/tokenize.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <numeric>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/data/data_source.h"
#include "quatrain/data/testing/scratch.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Scratch;
using Ids = std::vector<std::int64_t>;

struct Result {
  TokenizeCounts counts;
  Ids ids, begins;
  std::string text;  // ids as bytes; | for the end of a document
};

Result run(const Scratch& scratch, const std::vector<fs::path>& inputs,
           const TokenizeOptions& options = {}) {
  const auto tokenizer = open_tokenizer("bytes");
  Result result;
  result.counts = tokenize(inputs, *tokenizer, scratch.path("out/t"), options);
  const auto file = open_token_file(scratch.path("out/t"), TokenFormat::kMegatron);
  result.ids.resize(static_cast<std::size_t>(file->num_tokens()));
  file->read(0, result.ids);
  result.begins.assign(file->document_begins().begin(), file->document_begins().end());
  for (const std::int64_t id : result.ids) {
    result.text += id == 256 ? '|' : static_cast<char>(id);
  }
  EXPECT_EQ(file->num_tokens(), result.counts.tokens);
  EXPECT_EQ(static_cast<std::int64_t>(result.begins.size()) - 1, result.counts.documents);
  return result;
}

TEST(TokenizeTest, case_110_EmptyDocumentsAreSkippedAndCounted) {
  const Scratch scratch;
  const std::string empty = "{\"text\": \"\"}\n", blank = "{\"text\": \" \\n\\t \"}\n",
                    missing = "{\"body\": \"x\"}\n", null = "{\"text\": null}\n",
                    a = "{\"text\": \"aa\"}\n", b = "{\"text\": \"b\"}\n";
  const std::string holes = empty + blank + missing + null;
  for (const std::string& content :
       {holes + a + b, a + holes + b, a + b + holes, "\n" + a + "\n\n" + holes + "  \n" + b}) {
    const Result result = run(scratch, {scratch.write("a.jsonl", content)});
    EXPECT_EQ(result.text, "aa|b|");
    EXPECT_EQ(result.begins, (Ids{0, 3, 5}));
    EXPECT_EQ(result.counts.documents, 2);
    EXPECT_EQ(result.counts.skipped_empty, 2);
    EXPECT_EQ(result.counts.skipped_missing, 1);
    EXPECT_EQ(result.counts.skipped_null, 1);
    EXPECT_EQ(result.counts.bytes, static_cast<std::int64_t>(content.size()));
  }
  for (const std::string& content : {holes, std::string(), std::string("\n\n")}) {
    const Result result = run(scratch, {scratch.write("a.jsonl", content)});
    EXPECT_EQ(result.counts.documents, 0);
    EXPECT_EQ(result.text, "");
  }
  const Result text = run(scratch, {scratch.write("e.txt", ""), scratch.write("b.txt", " \n"),
                                    scratch.write("c.txt", "c")});
  EXPECT_EQ(text.text, "c|");
  EXPECT_EQ(text.counts.skipped_empty, 2);
}

TEST(TokenizeTest, case_115_ByteOrderMarksAndCrlf) {
  const Scratch scratch;
  const std::string bom = "\xEF\xBB\xBF";
  const Result plain =
      run(scratch, {scratch.write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}")});
  for (const std::string& content :
       {bom + "{\"text\": \"a\"}\n{\"text\": \"b\"}\n",
        bom + "{\"text\": \"a\"}\r\n{\"text\": \"b\"}\r\n",
        std::string("{\"text\": \"\\ufeffa\"}\r\n\r\n{\"text\": \"b\"}")}) {
    EXPECT_EQ(run(scratch, {scratch.write("a.jsonl", content)}).ids, plain.ids);
  }
  EXPECT_EQ(run(scratch, {scratch.write("a.txt", bom + "x\r\ny\rz\r\n")}).text, "x\ny\rz\n|");
}

TEST(TokenizeTest, case_112_NoEndOfDocumentTokenIsAClearError) {
  const Scratch scratch;
  // A byte-level vocabulary without added tokens.
  const Scratch folder;
  open_tokenizer("bytes")->save(folder.folder());
  std::string text = read_file(folder.path("tokenizer.json"));
  const auto at = text.find("\"added_tokens\": [");
  text.replace(at, text.find(']', at) - at + 1, "\"added_tokens\": []");
  const auto tokenizer = open_tokenizer(folder.write("x.json", text).string());
  EXPECT_FALSE(tokenizer->eod_id().has_value());
  const auto input = scratch.write("a.txt", "hello");
  EXPECT_THAT(
      message_of<ConfigError>([&] { tokenize({input}, *tokenizer, scratch.path("t"), {}); }),
      HasSubstr("no end-of-document token"));
  EXPECT_FALSE(fs::exists(scratch.path("t.bin")));
  EXPECT_EQ(tokenize({input}, *tokenizer, scratch.path("t"), {.append_eod = false}).tokens, 5);
}

TEST(TokenizeTest, BadLinesAreNamedAndNothingIsWritten) {
  const Scratch scratch;
  const auto message = [&](const std::string& content) {
    const auto input = scratch.write("in/a.jsonl", content);
    const auto tokenizer = open_tokenizer("bytes");
    return message_of<DataError>([&] { tokenize({input}, *tokenizer, scratch.path("out/t"), {}); });
  };
  const std::string good = "{\"text\": \"a\"}\n";
  EXPECT_THAT(message(good + good + "{\"text\": "), HasSubstr("a.jsonl:3: not a JSON object"));
  EXPECT_THAT(message("[1, 2]\n"), HasSubstr("a.jsonl:1: not a JSON object"));
  EXPECT_THAT(message(good + "\n{\"text\": 5}\n"), HasSubstr("a.jsonl:3: \"text\" is 5"));
  EXPECT_THAT(message("{\"text\": \"\xFF\"}\n"), HasSubstr("a.jsonl:1"));
  EXPECT_TRUE(fs::is_empty(scratch.path("out")));
}

TEST(TokenizeTest, InputsAreFoundOrRefused) {
  const Scratch scratch;
  scratch.write("d/b.txt", "b");
  scratch.write("d/a.jsonl", "{\"body\": \"a\"}\n");
  scratch.write("d/sub/c.md", "c");
  scratch.write("d/image.png", "x");
  EXPECT_EQ(run(scratch, {scratch.path("d")}, {.text_key = "body"}).text, "a|b|c|");
  EXPECT_EQ(run(scratch, {scratch.path("d/image.png")}).text, "x|");
  EXPECT_THROW(text_files({scratch.path("none")}), ConfigError);
  EXPECT_THROW(text_files({scratch.write("x.gz", "x")}), ConfigError);
  fs::create_directories(scratch.path("void"));
  EXPECT_THROW(text_files({scratch.path("void")}), ConfigError);
}

TEST(TokenizeTest, AnyNumberOfThreadsWritesTheSame) {
  const Scratch scratch;
  std::string lines, text;
  for (int i = 0; i < 60000; ++i) {
    lines += fmt::format("{{\"text\": \"line {} of many, with words\"}}\n", i);
    text += fmt::format("line {} of\n\nmany\nwith words  \n", i);
  }
  const std::vector<fs::path> inputs = {
      scratch.write("a.jsonl", lines), scratch.write("b.txt", text), scratch.write("c.txt", "end")};
  std::int64_t last = 0, calls = 0;
  const Result one = run(scratch, inputs, {.threads = 1});
  const Result four =
      run(scratch, inputs,
          {.threads = 4, .progress = [&](const TokenizeCounts& counts, std::int64_t total) {
             EXPECT_GE(counts.bytes, last);
             EXPECT_LE(counts.bytes, total);
             last = counts.bytes;
             ++calls;
           }});
  EXPECT_EQ(one.ids, four.ids);
  EXPECT_EQ(one.begins, four.begins);
  EXPECT_EQ(one.counts.documents, 60002);
  EXPECT_GT(calls, 3);
  EXPECT_EQ(last, static_cast<std::int64_t>(lines.size() + text.size() + 3));
  EXPECT_EQ(four.text.substr(four.text.size() - text.size() - 5), text + "|end|");
}

TEST(OpenSourcesTest, TextIsTokenizedOnceAndChecked) {
  const Scratch scratch;
  const auto input = scratch.write("a.txt", "hello");
  const auto tokenizer = open_tokenizer("bytes");
  OpenOptions options{.format = "text",
                      .tokenizer = tokenizer.get(),
                      .cache = scratch.path("cache"),
                      .model_vocab = 257};
  const auto first = open_sources({{input.string(), 2.0}}, options);
  EXPECT_EQ(first[0].file->num_tokens(), 6);
  EXPECT_EQ(first[0].weight, 2.0);
  const auto written = fs::last_write_time(first[0].file->path());
  const auto again = open_sources({{input.string(), 1.0}}, options);
  EXPECT_EQ(again[0].file->path(), first[0].file->path());
  EXPECT_EQ(fs::last_write_time(again[0].file->path()), written);
  scratch.write("a.txt", "hello!");
  EXPECT_EQ(open_sources({{input.string(), 1.0}}, options)[0].file->num_tokens(), 7);
  options.model_vocab = 200;
  EXPECT_THROW(open_sources({{input.string(), 1.0}}, options), DataError);
  options.format = "parquet";
  options.model_vocab = 0;
  EXPECT_THROW(open_sources({{input.string(), 1.0}}, options), ConfigError);
  options.format = "text";
  options.tokenizer = nullptr;
  EXPECT_THROW(open_sources({{input.string(), 1.0}}, options), ConfigError);
}

}  // namespace
}  // namespace quatrain
