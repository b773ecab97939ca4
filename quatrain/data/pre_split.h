// SPDX-License-Identifier: Apache-2.0
// Cuts text into the pieces that byte-pair encoding never merges across, by a Unicode regular
// expression (PCRE2 with UTF, UCP and JIT), as tokenizer.json's Split and ByteLevel steps do.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace quatrain {

inline constexpr std::string_view kGpt2Pattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The pattern in PCRE2's terms: tokenizers use Oniguruma, where \s is Unicode's White_Space and \w,
// \d are classes of Unicode categories.
std::string to_pcre2(std::string_view oniguruma);

class PreSplit {
 public:
  // keep_gaps: what lies between matches is a piece too (behaviour "Isolated"), else it is dropped.
  // Throws DataError with PCRE2's reason for a pattern that does not compile.
  PreSplit(std::string_view pattern, bool keep_gaps);
  ~PreSplit();
  PreSplit(PreSplit&&) noexcept;
  PreSplit& operator=(PreSplit&&) noexcept;

  // Calls visit for each piece of `text` (valid UTF-8), in order. Thread-safe.
  void split(std::string_view text, const std::function<void(std::string_view)>& visit) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  bool keep_gaps_ = true;
};

}  // namespace quatrain
