// SPDX-License-Identifier: Apache-2.0
// PCRE2 behind PreSplit. JIT code runs on a stack that grows to 8 MiB; where even that is too
// small, the interpreter, which uses the heap, takes over.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "quatrain/data/pre_split.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <array>

#include "quatrain/base/error.h"
#include "quatrain/data/utf8.h"

namespace quatrain {

struct FreePcre2 {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <class T>
using OwnedPcre2 = std::unique_ptr<T, FreePcre2>;

namespace {

constexpr std::string_view kWhiteSpace =
    R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// The members of a class that stands for \s, \d or \w; empty for any other escape.
std::string_view members(char escape) {
  switch (escape) {
    case 's':
    case 'S':
      return kWhiteSpace;
    case 'd':
    case 'D':
      return R"(\p{Nd})";
    case 'w':
    case 'W':
      return R"(\p{L}\p{M}\p{Nd}\p{Pc})";
    default:
      return {};
  }
}

}  // namespace

std::string to_pcre2(std::string_view oniguruma) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < oniguruma.size(); ++i) {
    const char c = oniguruma[i];
    if (c == '\\' && i + 1 < oniguruma.size()) {
      const char escape = oniguruma[++i];
      const std::string_view set = members(escape);
      const bool negated = escape >= 'A' && escape <= 'Z';
      if (set.empty() || (negated && in_class)) {
        out += {c, escape};
      } else if (in_class) {
        out += set;
      } else {
        out += fmt::format("[{}{}]", negated ? "^" : "", set);
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

struct PreSplit::Code {
  OwnedPcre2<pcre2_code> code;
  bool jit = false;
};

PreSplit::PreSplit(std::string_view pattern, bool keep_gaps)
    : code_(std::make_unique<Code>()), keep_gaps_(keep_gaps) {
  const std::string text = to_pcre2(pattern);
  int error = 0;
  std::size_t where = 0;
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &error, &where,
                                  nullptr));
  if (code_->code == nullptr) {
    throw DataError(fmt::format("the split pattern \"{}\" is not understood at {}: {}", pattern,
                                where, error_text(error)));
  }
  code_->jit = pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}

PreSplit::~PreSplit() = default;
PreSplit::PreSplit(PreSplit&&) noexcept = default;
PreSplit& PreSplit::operator=(PreSplit&&) noexcept = default;

void PreSplit::split(std::string_view text,
                     const std::function<void(std::string_view)>& visit) const {
  const pcre2_code* code = code_->code.get();
  const OwnedPcre2<pcre2_match_data> data(pcre2_match_data_create_from_pattern(code, nullptr));
  const OwnedPcre2<pcre2_match_context> context(pcre2_match_context_create(nullptr));
  const OwnedPcre2<pcre2_jit_stack> stack(pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr));
  pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto match = [&](std::size_t from) {
    if (code_->jit) {
      const int rc =
          pcre2_jit_match(code, subject, text.size(), from, 0, data.get(), context.get());
      if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    }
    return pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data.get(), context.get());
  };
  const std::size_t* ends = pcre2_get_ovector_pointer(data.get());
  std::size_t piece = 0, from = 0;
  while (from < text.size()) {
    const int rc = match(from);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) throw DataError(fmt::format("splitting text failed: {}", error_text(rc)));
    const std::size_t begin = ends[0], end = ends[1];
    if (end <= begin) {
      from = begin + (begin < text.size() ? utf8_char_bytes(text.substr(begin, 4)) : 1);
      continue;
    }
    if (begin > piece && keep_gaps_) visit(text.substr(piece, begin - piece));
    visit(text.substr(begin, end - begin));
    piece = from = end;
  }
  if (piece < text.size() && keep_gaps_) visit(text.substr(piece));
}

}  // namespace quatrain
