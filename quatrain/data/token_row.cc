// SPDX-License-Identifier: Apache-2.0
// Token files seen as rows of ids: several as one, and what a scan over one finds.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/data/token_file.h"

namespace quatrain {
namespace {

constexpr std::int64_t kScanTokens = 1 << 15;

class Concatenation : public TokenFile {
 public:
  explicit Concatenation(std::vector<std::unique_ptr<TokenFile>> files) : files_(std::move(files)) {
    CHECK(!files_.empty(), "no files to lay end to end");
    const bool documents = std::none_of(files_.begin(), files_.end(), [](const auto& file) {
      return file->document_begins().empty();
    });
    for (const auto& file : files_) {
      const std::int64_t base = ends_.empty() ? 0 : ends_.back();
      if (documents) {
        const auto begins = file->document_begins();
        for (std::size_t i = 0; i + 1 < begins.size(); ++i) begins_.push_back(base + begins[i]);
      }
      ends_.push_back(base + file->num_tokens());
    }
    if (documents) begins_.push_back(ends_.back());
  }

  std::string_view format() const override { return files_.front()->format(); }
  std::string_view dtype() const override { return files_.front()->dtype(); }
  std::int64_t num_tokens() const override { return ends_.back(); }
  std::span<const std::int64_t> document_begins() const override { return begins_; }
  const std::filesystem::path& path() const override { return files_.front()->path(); }

  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    const auto count = static_cast<std::int64_t>(out.size());
    if (begin < 0 || begin > num_tokens() || count > num_tokens() - begin) {
      throw DataError(fmt::format("{} and {} more: tokens {} to {} are outside their {}",
                                  path().string(), files_.size() - 1, begin, begin + count,
                                  num_tokens()));
    }
    auto file = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) -
                                         ends_.begin());
    while (!out.empty()) {
      const std::int64_t base = file == 0 ? 0 : ends_[file - 1];
      const auto here = std::min(out.size(), static_cast<std::size_t>(ends_[file] - begin));
      files_[file]->read(begin - base, out.first(here));
      out = out.subspan(here);
      begin += static_cast<std::int64_t>(here);
      ++file;
    }
  }

 private:
  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<std::int64_t> ends_, begins_;
};

// Calls visit(position of the first, ids) over the whole file.
template <class F>
void scan(const TokenFile& file, F&& visit) {
  std::vector<std::int64_t> buffer(static_cast<std::size_t>(kScanTokens));
  for (std::int64_t at = 0; at < file.num_tokens(); at += kScanTokens) {
    const auto count = static_cast<std::size_t>(std::min(kScanTokens, file.num_tokens() - at));
    const std::span<std::int64_t> ids(buffer.data(), count);
    file.read(at, ids);
    visit(at, std::span<const std::int64_t>(ids));
  }
}

}  // namespace

std::unique_ptr<TokenFile> concatenate(std::vector<std::unique_ptr<TokenFile>> files) {
  if (files.size() == 1) return std::move(files.front());
  return std::make_unique<Concatenation>(std::move(files));
}

void check_ids(const TokenFile& file, std::int64_t vocab) {
  scan(file, [&](std::int64_t at, std::span<const std::int64_t> ids) {
    const auto limit = static_cast<std::uint64_t>(vocab);
    bool good = true;
    for (const std::int64_t id : ids) good &= static_cast<std::uint64_t>(id) < limit;
    if (good) return;
    const auto bad = std::find_if(ids.begin(), ids.end(), [&](std::int64_t id) {
      return static_cast<std::uint64_t>(id) >= limit;
    });
    throw DataError(
        fmt::format("{}: token {} has id {}, outside the model's vocabulary of {} ids "
                    "(0 to {}): the file was made with another tokenizer, or "
                    "model.vocab_size is too small",
                    file.path().string(), at + (bad - ids.begin()), *bad, vocab, vocab - 1));
  });
}

TokenFileFacts inspect(const TokenFile& file, std::int64_t eod_id) {
  TokenFileFacts facts;
  facts.format = file.format();
  facts.dtype = file.dtype();
  facts.tokens = file.num_tokens();
  scan(file, [&](std::int64_t, std::span<const std::int64_t> ids) {
    for (const std::int64_t id : ids) {
      facts.max_id = std::max(facts.max_id, id);
      facts.eod_count += id == eod_id ? 1 : 0;
    }
  });
  if (eod_id < 0) facts.eod_count = 0;
  const auto begins = file.document_begins();
  facts.documents = begins.empty() ? facts.eod_count : static_cast<std::int64_t>(begins.size()) - 1;
  return facts;
}

std::vector<std::string> inspect_warnings(const TokenFileFacts& facts, std::int64_t eod_id) {
  std::vector<std::string> warnings;
  if (facts.tokens == 0) warnings.emplace_back("the file holds no tokens");
  if (eod_id >= 0 && facts.eod_count == 0 && facts.tokens > 0) {
    warnings.push_back(
        fmt::format("the end-of-document id {} never occurs: the model will not "
                    "learn where documents end",
                    eod_id));
  }
  return warnings;
}

}  // namespace quatrain
