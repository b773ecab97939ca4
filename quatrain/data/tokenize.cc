// SPDX-License-Identifier: Apache-2.0
// The tokenising pipeline: this thread maps files and cuts them into blocks of about a megabyte,
// the pool encodes them, this thread writes them in order.
#include "quatrain/data/tokenize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <thread>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/data/ordered_pool.h"
#include "quatrain/data/utf8.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<std::int64_t>;

constexpr std::size_t kBlockBytes = 1 << 20;

// A block's documents, encoded. `continues`: the last one goes on in the next block.
struct Encoded {
  std::vector<Ids> documents;
  bool continues = false;
  TokenizeCounts counts;  // of the block: bytes and what was skipped
};

bool is_json_lines(const fs::path& file) {
  const std::string extension = file.extension().string();
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".json";
}

bool is_blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
}

std::string_view as_text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// One line of JSONL: its text, or counted as skipped.
std::optional<std::string> text_of_line(std::string_view line, const fs::path& file,
                                        std::int64_t number, const std::string& key,
                                        TokenizeCounts& counts) {
  const auto bad = [&](const std::string& what) {
    return DataError(fmt::format("{}:{}: {}", file.string(), number, what));
  };
  json object;
  try {
    object = json::parse(line);
  } catch (const json::exception& error) {
    throw bad(fmt::format("not a JSON object (JSONL has one a line): {}", error.what()));
  }
  if (!object.is_object()) throw bad("not a JSON object: JSONL has one object a line");
  const auto found = object.find(key);
  if (found == object.end()) {
    ++counts.skipped_missing;
    return std::nullopt;
  }
  if (found->is_null()) {
    ++counts.skipped_null;
    return std::nullopt;
  }
  if (!found->is_string()) throw bad(fmt::format("\"{}\" is {}, not a string", key, found->dump()));
  std::string text(without_bom(found->get_ref<const std::string&>()));
  if (is_blank(text)) {
    ++counts.skipped_empty;
    return std::nullopt;
  }
  return text;
}

class Pipeline {
 public:
  Pipeline(const Tokenizer& tokenizer, const fs::path& prefix, const TokenizeOptions& options,
           std::int64_t total_bytes)
      : tokenizer_(tokenizer),
        options_(options),
        total_bytes_(total_bytes),
        writer_(prefix, tokenizer.vocab_size()),
        pool_(options.threads > 0
                  ? options.threads
                  : static_cast<int>(std::max(1U, std::thread::hardware_concurrency())),
              [this](Encoded block) { take(std::move(block)); }) {}

  void add_json_lines(const std::shared_ptr<MappedFile>& file) {
    std::string_view rest = without_bom(as_text(*file));
    std::int64_t number = 1;
    while (!rest.empty()) {
      std::size_t end = rest.size() <= kBlockBytes ? rest.size() : rest.find('\n', kBlockBytes);
      end = end == std::string_view::npos ? rest.size() : std::min(rest.size(), end + 1);
      const std::string_view block = rest.substr(0, end);
      pool_.give([this, file, block, number] { return encode_lines(*file, block, number); });
      number += std::count(block.begin(), block.end(), '\n');
      rest.remove_prefix(end);
    }
  }

  // One document, cut where the tokenizer allows it.
  void add_text(const std::shared_ptr<MappedFile>& file) {
    std::string_view rest = without_bom(as_text(*file));
    if (is_blank(rest)) {
      Encoded nothing;
      nothing.counts.bytes = file->size();
      nothing.counts.skipped_empty = 1;
      pool_.give([nothing] { return nothing; });
      return;
    }
    while (!rest.empty()) {
      const std::size_t end = tokenizer_.cuts_at_lines() ? block_end(rest) : rest.size();
      const std::string_view block = rest.substr(0, end);
      const bool last = end == rest.size();
      pool_.give([this, file, block, last] { return encode_text(block, last); });
      rest.remove_prefix(end);
    }
  }

  TokenizeCounts finish() {
    pool_.drain();
    writer_.finish();
    counts_.documents = writer_.num_documents();
    counts_.tokens = writer_.num_tokens();
    if (options_.progress) options_.progress(counts_, total_bytes_);
    return counts_;
  }

 private:
  static std::size_t block_end(std::string_view text) {
    const auto word = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    };
    std::size_t at = kBlockBytes;
    while (at < text.size() && (at = text.find('\n', at)) < text.size()) {
      if (at + 1 < text.size() && word(text[at - 1]) && word(text[at + 1])) return at + 1;
      ++at;
    }
    return text.size();
  }

  Encoded encode_lines(const MappedFile& file, std::string_view block, std::int64_t number) const {
    Encoded out;
    out.counts.bytes = static_cast<std::int64_t>(block.size());
    for (; !block.empty(); ++number) {
      const std::size_t end = std::min(block.size(), block.find('\n'));
      const std::string_view line = block.substr(0, end);
      block.remove_prefix(std::min(block.size(), end + 1));
      if (is_blank(line)) continue;
      const auto text = text_of_line(line, file.path(), number, options_.text_key, out.counts);
      if (text) out.documents.push_back(tokenizer_.encode(*text));
    }
    return out;
  }

  Encoded encode_text(std::string_view block, bool last) const {
    Encoded out;
    out.counts.bytes = static_cast<std::int64_t>(block.size());
    out.continues = !last;
    if (block.find("\r\n") == std::string_view::npos) {
      out.documents.push_back(tokenizer_.encode(block));
      return out;
    }
    std::string text;
    text.reserve(block.size());
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (block[i] != '\r' || i + 1 == block.size() || block[i + 1] != '\n') text += block[i];
    }
    out.documents.push_back(tokenizer_.encode(text));
    return out;
  }

  void take(Encoded block) {
    for (std::size_t i = 0; i < block.documents.size(); ++i) {
      Ids& ids = block.documents[i];
      if (!begun_.empty()) {
        begun_.insert(begun_.end(), ids.begin(), ids.end());
        ids = std::exchange(begun_, {});
      }
      if (block.continues && i + 1 == block.documents.size()) {
        begun_ = std::move(ids);
        break;
      }
      if (options_.append_eod) ids.push_back(*tokenizer_.eod_id());
      writer_.add_document(ids);
    }
    counts_.bytes += block.counts.bytes;
    counts_.skipped_empty += block.counts.skipped_empty;
    counts_.skipped_missing += block.counts.skipped_missing;
    counts_.skipped_null += block.counts.skipped_null;
    counts_.documents = writer_.num_documents();
    counts_.tokens = writer_.num_tokens();
    if (options_.progress) options_.progress(counts_, total_bytes_);
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  std::int64_t total_bytes_;
  TokenizeCounts counts_;
  MegatronWriter writer_;
  Ids begun_;                  // a document whose end is in a later block
  OrderedPool<Encoded> pool_;  // last: its threads use the rest
};

}  // namespace

std::vector<fs::path> text_files(const std::vector<fs::path>& inputs) {
  static const std::set<std::string> kText = {".txt", ".text", ".md", ".jsonl", ".ndjson", ".json"};
  static const std::set<std::string> kPacked = {".gz", ".zst", ".xz", ".bz2", ".zip", ".parquet"};
  std::vector<fs::path> files;
  for (const fs::path& input : inputs) {
    if (fs::is_directory(input)) {
      std::vector<fs::path> found;
      for (const auto& entry : fs::recursive_directory_iterator(input)) {
        if (entry.is_regular_file() && kText.contains(entry.path().extension().string())) {
          found.push_back(entry.path());
        }
      }
      if (found.empty()) {
        throw ConfigError(
            fmt::format("{}: no text in this folder (.txt .text .md .jsonl .ndjson "
                        ".json); name other files one by one",
                        input.string()));
      }
      std::sort(found.begin(), found.end());
      files.insert(files.end(), found.begin(), found.end());
    } else if (!fs::exists(input)) {
      throw ConfigError(fmt::format("{}: no such file or folder", input.string()));
    } else if (kPacked.contains(input.extension().string())) {
      throw ConfigError(
          fmt::format("{}: a packed file; unpack it to text or JSONL first", input.string()));
    } else {
      files.push_back(input);
    }
  }
  if (files.empty()) throw ConfigError("no text files named");
  return files;
}

TokenizeCounts tokenize(const std::vector<fs::path>& inputs, const Tokenizer& tokenizer,
                        const fs::path& prefix, const TokenizeOptions& options) {
  if (options.append_eod && !tokenizer.eod_id()) {
    throw ConfigError(fmt::format(
        "this {} tokenizer has no end-of-document token, so documents would run into each other: "
        "name one as eos_token in tokenizer_config.json, or tokenize without one (--no-eod)",
        tokenizer.kind()));
  }
  const std::vector<fs::path> files = text_files(inputs);
  std::int64_t total = 0;
  for (const fs::path& file : files) total += static_cast<std::int64_t>(fs::file_size(file));
  Pipeline pipeline(tokenizer, prefix, options, total);
  for (const fs::path& file : files) {
    const auto map = std::make_shared<MappedFile>(file);
    if (is_json_lines(file)) {
      pipeline.add_json_lines(map);
    } else {
      pipeline.add_text(map);
    }
  }
  return pipeline.finish();
}

}  // namespace quatrain
