// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE as Hugging Face's tokenizers run it: added tokens out of the text, normalisation,
// the split patterns, then merges within each piece. Bytes that are no UTF-8 are pieces of their
// own, so every input comes back.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/rng.h"
#include "quatrain/data/bpe.h"
#include "quatrain/data/bpe_spec.h"
#include "quatrain/data/nfc.h"
#include "quatrain/data/pre_split.h"
#include "quatrain/data/tokenizer.h"
#include "quatrain/data/utf8.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

// Finds added tokens in text: leftmost, then longest.
class AddedTokens {
 public:
  void add(const std::string& content, std::int64_t id) {
    tokens_.emplace_back(content, id);
    std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) {
      return a.first.size() != b.first.size() ? a.first.size() > b.first.size() : a < b;
    });
    first_[static_cast<unsigned char>(content[0])] = true;
  }
  // Calls between(text) for what lies between tokens and token(id) for each, in order.
  template <class Between, class Token>
  void cut(std::string_view text, Between&& between, Token&& token) const {
    std::size_t done = 0;
    for (std::size_t at = 0; !tokens_.empty() && at < text.size();) {
      const auto* found =
          first_[static_cast<unsigned char>(text[at])] ? find(text.substr(at)) : nullptr;
      if (found == nullptr) {
        ++at;
        continue;
      }
      if (at > done) between(text.substr(done, at - done));
      token(found->second);
      at += found->first.size();
      done = at;
    }
    if (done < text.size()) between(text.substr(done));
  }

 private:
  const std::pair<std::string, std::int64_t>* find(std::string_view text) const {
    for (const auto& token : tokens_) {
      if (text.starts_with(token.first)) return &token;
    }
    return nullptr;
  }
  std::vector<std::pair<std::string, std::int64_t>> tokens_;  // longest first
  std::array<bool, 256> first_{};
};

std::int64_t largest_id(const BpeSpec& spec) {
  std::int64_t largest = 0;
  for (const auto& [token, id] : spec.vocab) largest = std::max(largest, id);
  for (const BpeSpec::Added& added : spec.added) largest = std::max(largest, added.id);
  return largest;
}

// Bytes of each id that text can be merged into.
std::vector<std::string> mergeable(const BpeSpec& spec) {
  std::vector<std::string> tokens(static_cast<std::size_t>(largest_id(spec)) + 1);
  for (const auto& [token, id] : spec.vocab) {
    bool mapped = false;
    std::string bytes = bytes_of_token(token, &mapped);
    if (mapped) tokens[static_cast<std::size_t>(id)] = std::move(bytes);
  }
  return tokens;
}

std::vector<BpeMerger::Merge> merges_by_id(const BpeSpec& spec) {
  std::unordered_map<std::string_view, std::int32_t> ids;
  for (const auto& [token, id] : spec.vocab) ids[token] = static_cast<std::int32_t>(id);
  std::vector<BpeMerger::Merge> merges;
  merges.reserve(spec.merges.size());
  for (const auto& [left, right] : spec.merges) {
    merges.push_back({ids.at(left), ids.at(right), ids.at(left + right)});
  }
  return merges;
}

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeSpec spec)
      : merger_(mergeable(spec), merges_by_id(spec), spec.ignore_merges),
        nfc_(spec.nfc),
        files_(spec.files),
        text_(static_cast<std::size_t>(largest_id(spec)) + 1) {
    for (const auto& [token, id] : spec.vocab) {
      text_[static_cast<std::size_t>(id)] = bytes_of_token(token);
      if (token == spec.eod) eod_ = id;
    }
    for (const BpeSpec::Split& split : spec.splits) {
      splits_.emplace_back(split.pattern, split.keep_gaps);
      known_patterns_ = known_patterns_ && split.keep_gaps &&
                        (split.pattern == kGpt2Pattern || split.pattern == kLlama3Pattern ||
                         split.pattern == kQwenPattern);
    }
    for (const BpeSpec::Added& added : spec.added) {
      text_[static_cast<std::size_t>(added.id)] = added.content;
      (added.normalized ? added_after_ : added_before_).add(added.content, added.id);
      if (added.content == spec.eod) eod_ = added.id;
      known_patterns_ = known_patterns_ && added.content.find('\n') == std::string::npos;
    }
    std::string all;
    for (const fs::path& file : files_) all += read_file(file);
    fingerprint_ = stable_hash(all);
  }

  std::string_view kind() const override { return "bpe"; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(text_.size()); }
  std::optional<std::int64_t> eod_id() const override { return eod_; }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  bool cuts_at_lines() const override { return known_patterns_; }

  std::vector<std::int64_t> encode(std::string_view text) const override {
    std::vector<std::int64_t> ids;
    ids.reserve(text.size() / 4);
    for (bool valid = true; !text.empty(); valid = !valid) {
      const std::string_view run = text.substr(0, utf8_run_bytes(text, valid));
      text.remove_prefix(run.size());
      if (run.empty()) continue;
      if (valid) {
        encode_valid(run, ids);
      } else {
        merger_.encode(run, ids);
      }
    }
    return ids;
  }

  std::string decode(std::span<const std::int64_t> ids) const override {
    std::string text;
    for (const std::int64_t id : ids) {
      const bool known =
          id >= 0 && id < vocab_size() && !text_[static_cast<std::size_t>(id)].empty();
      text += known ? std::string_view(text_[static_cast<std::size_t>(id)]) : "\xEF\xBF\xBD";
    }
    return text;
  }

  void save(const fs::path& folder) const override {
    for (const fs::path& file : files_) {
      write_file_atomically(folder / file.filename(), read_file(file));
    }
  }

 private:
  void encode_valid(std::string_view text, std::vector<std::int64_t>& ids) const {
    const auto push = [&](std::int64_t id) { ids.push_back(id); };
    const auto words = [&](std::string_view part) { encode_words(part, 0, ids); };
    added_before_.cut(
        text,
        [&](std::string_view part) {
          if (!nfc_ || is_nfc_plainly(part)) {
            added_after_.cut(part, words, push);
          } else {
            added_after_.cut(to_nfc(part), words, push);
          }
        },
        push);
  }

  void encode_words(std::string_view text, std::size_t step, std::vector<std::int64_t>& ids) const {
    if (step == splits_.size()) {
      merger_.encode(text, ids);
      return;
    }
    splits_[step].split(text, [&](std::string_view piece) { encode_words(piece, step + 1, ids); });
  }

  BpeMerger merger_;
  bool nfc_;
  std::vector<fs::path> files_;
  std::vector<std::string> text_;  // of each id; empty: no such id
  std::vector<PreSplit> splits_;
  AddedTokens added_before_, added_after_;
  bool known_patterns_ = true;
  std::optional<std::int64_t> eod_;
  std::uint64_t fingerprint_ = 0;
};

// What the byte tokenizer saves itself as.
bool is_byte_tokenizer(const BpeSpec& spec) {
  if (!spec.merges.empty() || spec.vocab.size() != 256 || spec.added.size() != 1 ||
      spec.added[0].id != 256 || !spec.splits.empty() || spec.nfc) {
    return false;
  }
  return std::all_of(spec.vocab.begin(), spec.vocab.end(), [](const auto& entry) {
    const std::string bytes = bytes_of_token(entry.first);
    return bytes.size() == 1 && static_cast<unsigned char>(bytes[0]) == entry.second;
  });
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeSpec spec) {
  if (is_byte_tokenizer(spec)) return make_byte_tokenizer();
  try {
    return std::make_unique<BpeTokenizer>(std::move(spec));
  } catch (const DataError& error) {
    const std::string what = error.what();
    throw DataError(fmt::format(
        "{}: {}", spec.files.empty() ? "tokenizer" : spec.files.front().string(), what));
  }
}

}  // namespace quatrain
