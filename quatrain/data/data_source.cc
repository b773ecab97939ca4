// SPDX-License-Identifier: Apache-2.0
// Opens what a configuration names, and keeps tokenized text in a cache keyed by content.
#include "quatrain/data/data_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/rng.h"
#include "quatrain/data/tokenize.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

// Counts up when tokenize() would write other ids for the same text.
constexpr int kCacheVersion = 1;

std::uint64_t content_hash(const fs::path& file) {
  const MappedFile map(file);
  return stable_hash({reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size()});
}

TokenFormat format_of(std::string_view name) {
  if (name == "auto") return TokenFormat::kAuto;
  if (name == "megatron") return TokenFormat::kMegatron;
  if (name == "llmc") return TokenFormat::kLlmc;
  if (name == "nanogpt") return TokenFormat::kNanoGpt;
  throw ConfigError(
      fmt::format("data.format = \"{}\" is none of auto, megatron, llmc, nanogpt, text", name));
}

bool is_text(const fs::path& path) {
  constexpr std::array kEndings = {".txt", ".text", ".md", ".jsonl", ".ndjson", ".json"};
  return std::find(kEndings.begin(), kEndings.end(), path.extension()) != kEndings.end();
}

std::unique_ptr<TokenFile> open_one(const DataPath& data, const OpenOptions& options) {
  if (options.format != "text" && !(options.format == "auto" && is_text(data.path))) {
    return open_token_file(data.path, format_of(options.format));
  }
  if (options.tokenizer == nullptr) {
    throw ConfigError(fmt::format("data: {} is text and needs data.tokenizer: \"bytes\" or a path",
                                  data.path));
  }
  TokenizeOptions how;
  how.threads = options.threads;
  return open_text({data.path}, *options.tokenizer, options.cache, how);
}

}  // namespace

std::unique_ptr<TokenFile> open_text(const std::vector<fs::path>& inputs,
                                     const Tokenizer& tokenizer, const fs::path& cache,
                                     const TokenizeOptions& options) {
  std::string key = fmt::format("{} {:016x} {} {}", kCacheVersion, tokenizer.fingerprint(),
                                options.text_key, options.append_eod);
  for (const fs::path& file : text_files(inputs)) {
    key += fmt::format(" {:016x}{}", content_hash(file), file.extension().string());
  }
  const fs::path prefix = cache / fmt::format("text-{:016x}", stable_hash(key));
  if (!fs::exists(fs::path(prefix) += ".idx") || !fs::exists(fs::path(prefix) += ".bin")) {
    tokenize(inputs, tokenizer, prefix, options);
  }
  return open_token_file(prefix, TokenFormat::kMegatron);
}

std::vector<DataSource> open_sources(const std::vector<DataPath>& paths,
                                     const OpenOptions& options) {
  std::vector<DataSource> sources;
  if (options.tokenizer != nullptr && options.model_vocab > 0) {
    check_vocab(*options.tokenizer, options.model_vocab);
  }
  for (const DataPath& data : paths) {
    sources.push_back({open_one(data, options), data.weight});
    if (options.model_vocab > 0) check_ids(*sources.back().file, options.model_vocab);
  }
  return sources;
}

}  // namespace quatrain
