// SPDX-License-Identifier: Apache-2.0
// Trains sentencepiece's BPE on lines of text, in memory, and writes the model as one file.
#include <fmt/format.h>
#include <sentencepiece_trainer.h>

#include <unordered_map>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/data/tokenizer.h"
#include "quatrain/data/utf8.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using sentencepiece::util::Status;

// Lines of files, one file in memory at a time. Long lines are cut between characters.
class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<fs::path>& files) : files_(files) { Next(); }
  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  Status status() const override { return {}; }
  void Next() override {
    while (rest_.empty()) {
      if (file_ == files_.size()) {
        done_ = true;
        return;
      }
      text_ = read_file(files_[file_++]);
      rest_ = without_bom(text_);
    }
    const std::size_t end = rest_.find('\n');
    std::string_view line = rest_.substr(0, end);
    if (line.size() > kLongest) {
      std::size_t cut = kLongest;
      while (cut > kLongest - 4 && (static_cast<unsigned char>(line[cut]) & 0xC0U) == 0x80U) --cut;
      line = line.substr(0, cut);
      rest_.remove_prefix(cut);
    } else {
      rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    }
    if (line.ends_with('\r')) line.remove_suffix(1);
    line_ = line;
  }

 private:
  static constexpr std::size_t kLongest = 4000;
  const std::vector<fs::path>& files_;
  std::size_t file_ = 0;
  std::string text_, line_;
  std::string_view rest_;
  bool done_ = false;
};

}  // namespace

void train_sentencepiece(const std::vector<fs::path>& texts, std::int64_t vocab,
                         const fs::path& model_path, int threads) {
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab)},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"character_coverage", "0.9995"},
      {"max_sentence_length", "8192"},
      {"num_threads", std::to_string(threads > 0 ? threads : 1)},
      {"minloglevel", "2"},
  };
  Lines lines(texts);
  std::string model;
  const Status status = sentencepiece::SentencePieceTrainer::Train(options, &lines, &model);
  if (!status.ok()) {
    throw ConfigError(fmt::format("cannot train a tokenizer of {} ids on {} files: {}", vocab,
                                  texts.size(), status.ToString()));
  }
  write_file_atomically(model_path, model);
}

}  // namespace quatrain
