// SPDX-License-Identifier: Apache-2.0
// quatrain data tokenize | train-tokenizer | inspect.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "apps/commands.h"
#include "apps/console.h"
#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/data/token_file.h"
#include "quatrain/data/tokenize.h"
#include "quatrain/data/tokenizer.h"

namespace quatrain::apps {
namespace fs = std::filesystem;
namespace {

int default_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

struct TokenizeArguments {
  std::vector<std::string> inputs;
  std::string tokenizer;
  std::string out;
  std::string text_key = "text";
  bool no_eod = false;
  int threads = default_threads();
  bool json = false;
};

int tokenize_command(const TokenizeArguments& arguments) {
  Console console(arguments.json);
  const auto tokenizer = open_tokenizer(arguments.tokenizer);
  TokenizeOptions options;
  options.text_key = arguments.text_key;
  options.append_eod = !arguments.no_eod;
  options.threads = arguments.threads;
  options.progress = [&](const TokenizeCounts& done, std::int64_t total_bytes) {
    console.progress(fmt::format("{} of {}  {} tokens", human_bytes(done.bytes),
                                 human_bytes(total_bytes), with_commas(done.tokens)));
  };
  const std::vector<fs::path> inputs(arguments.inputs.begin(), arguments.inputs.end());
  const TokenizeCounts counts = tokenize(inputs, *tokenizer, arguments.out, options);
  console.line(
      fmt::format("{} documents, {} tokens -> {}.bin  (skipped: {} empty, {} without the "
                  "key, {} null)",
                  with_commas(counts.documents), with_commas(counts.tokens), arguments.out,
                  counts.skipped_empty, counts.skipped_missing, counts.skipped_null));
  nlohmann::ordered_json document;
  document["documents"] = counts.documents;
  document["tokens"] = counts.tokens;
  document["skipped"] = counts.skipped();
  document["out"] = arguments.out;
  console.document(document);
  return 0;
}

struct TrainTokenizerOptions {
  std::vector<std::string> inputs;
  std::string out;
  std::int64_t vocab = 4096;
  int threads = default_threads();
};

int train_tokenizer(const TrainTokenizerOptions& options) {
  Console console;
  const std::vector<fs::path> inputs(options.inputs.begin(), options.inputs.end());
  train_sentencepiece(text_files(inputs), options.vocab, options.out, options.threads);
  console.line(fmt::format("{} pieces -> {}", options.vocab, options.out));
  return 0;
}

struct InspectFileOptions {
  std::string file;
  std::int64_t eod_id = -1;
  bool json = false;
};

int inspect_file(const InspectFileOptions& options) {
  Console console(options.json);
  const auto file = open_token_file(options.file, TokenFormat::kAuto);
  const TokenFileFacts facts = inspect(*file, options.eod_id);
  console.line(
      fmt::format("{}  {}  {} tokens  {} documents  largest id {}{}", facts.format, facts.dtype,
                  with_commas(facts.tokens), with_commas(facts.documents), facts.max_id,
                  options.eod_id < 0 ? std::string()
                                     : fmt::format("  {} end-of-document ids", facts.eod_count)));
  for (const std::string& warning : inspect_warnings(facts, options.eod_id)) {
    console.line("warning: " + warning);
  }
  nlohmann::ordered_json document;
  document["format"] = facts.format;
  document["tokens"] = facts.tokens;
  document["documents"] = facts.documents;
  document["max_id"] = facts.max_id;
  document["eod_count"] = facts.eod_count;
  document["dtype"] = facts.dtype;
  console.document(document);
  return 0;
}

}  // namespace

Registered add_data_tokenize(CLI::App& data) {
  CLI::App* parser =
      data.add_subcommand("tokenize", "Text, JSONL or folders in, .idx and .bin out");
  auto options = std::make_shared<TokenizeArguments>();
  parser->add_option("inputs", options->inputs, "text files, .jsonl files or folders")->required();
  parser
      ->add_option("--tokenizer", options->tokenizer,
                   "bytes, a sentencepiece .model, a tokenizer.json, or a folder of these")
      ->required();
  parser->add_option("--out", options->out, "prefix of the .idx and .bin files")->required();
  parser->add_option("--text-key", options->text_key, "key of the text in JSONL")
      ->capture_default_str();
  parser->add_flag("--no-eod", options->no_eod, "no end-of-document id after each document");
  parser->add_option("--threads", options->threads)->check(CLI::Range(1, 1024));
  parser->add_flag("--json", options->json, "one JSON document on stdout, the rest on stderr");
  parser->footer("Example:\n  quatrain data tokenize corpus/ --tokenizer bytes --out data/corpus");
  return {parser, [options] { return tokenize_command(*options); }};
}

Registered add_data_train_tokenizer(CLI::App& data) {
  CLI::App* parser = data.add_subcommand("train-tokenizer", "Train a sentencepiece BPE model");
  auto options = std::make_shared<TrainTokenizerOptions>();
  parser->add_option("inputs", options->inputs, "text files")->required();
  parser->add_option("--vocab", options->vocab, "number of pieces")
      ->check(CLI::Range(300, 1000000))
      ->capture_default_str();
  parser->add_option("--out", options->out, "the .model file to write")->required();
  parser->add_option("--threads", options->threads)->check(CLI::Range(1, 1024));
  parser->footer(
      "Example:\n  quatrain data train-tokenizer book.txt --vocab 4096 --out book.model");
  return {parser, [options] { return train_tokenizer(*options); }};
}

Registered add_data_inspect(CLI::App& data) {
  CLI::App* parser = data.add_subcommand("inspect", "Facts about a token file");
  auto options = std::make_shared<InspectFileOptions>();
  parser->add_option("file", options->file, "a .idx, .bin or prefix")->required();
  parser->add_option("--eod", options->eod_id, "count this end-of-document id");
  parser->add_flag("--json", options->json, "one JSON document on stdout, the rest on stderr");
  parser->footer("Example:\n  quatrain data inspect data/corpus.idx --eod 256");
  return {parser, [options] { return inspect_file(*options); }};
}

}  // namespace quatrain::apps
