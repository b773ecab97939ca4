// SPDX-License-Identifier: Apache-2.0
// tokenizer.json (the format of Hugging Face's tokenizers 0.13 to 0.23) and vocab.json with
// merges.txt, into a BpeSpec.
#include "quatrain/data/bpe_spec.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/data/pre_split.h"
#include "quatrain/data/utf8.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kMostIds = 1 << 24;
constexpr std::array<std::string_view, 4> kUsualEod = {"<|endoftext|>", "<|end_of_text|>", "</s>",
                                                       "<eos>"};

[[noreturn]] void unsupported(const fs::path& file, const std::string& what) {
  throw DataError(fmt::format("{}: {} is not supported; byte-level BPE (GPT-2, Llama-3, Qwen) is",
                              file.string(), what));
}
[[noreturn]] void damaged_tokenizer(const fs::path& file, const std::string& rule) {
  throw DataError(fmt::format("{}: damaged tokenizer: {}", file.string(), rule));
}

json parse(const fs::path& file) {
  try {
    return json::parse(without_bom(read_file(file)));
  } catch (const json::exception& error) {
    damaged_tokenizer(file, error.what());
  }
}

// Member or null; null also where `object` is none.
const json& member(const json& object, const char* key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}
bool flag(const json& object, const char* key, bool otherwise) {
  const json& value = member(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}
std::string text(const json& object, const char* key) {
  const json& value = member(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::int64_t id_of(const fs::path& file, const std::string& token, const json& id) {
  if (!id.is_number_integer())
    damaged_tokenizer(file, fmt::format("the id of \"{}\" is no integer", token));
  const auto value = id.get<std::int64_t>();
  if (value < 0 || value >= kMostIds) {
    damaged_tokenizer(file, fmt::format("the id of \"{}\" is {}, not within 0 to {}", token, value,
                                        kMostIds - 1));
  }
  return value;
}

void read_vocab(const fs::path& file, const json& vocab, BpeSpec& spec) {
  if (!vocab.is_object() || vocab.empty()) damaged_tokenizer(file, "no vocabulary");
  std::unordered_map<std::int64_t, std::string> owner;
  for (const auto& [token, id] : vocab.items()) {
    const std::int64_t value = id_of(file, token, id);
    if (const auto [at, fresh] = owner.emplace(value, token); !fresh) {
      damaged_tokenizer(
          file, fmt::format("\"{}\" and \"{}\" have the same id {}", at->second, token, value));
    }
    spec.vocab.emplace_back(token, value);
  }
}

void check_merges(const fs::path& file, const BpeSpec& spec) {
  std::unordered_set<std::string_view> known;
  for (const auto& [token, id] : spec.vocab) known.insert(token);
  for (std::size_t i = 0; i < spec.merges.size(); ++i) {
    const auto& [left, right] = spec.merges[i];
    const std::string both = left + right;
    for (const std::string& token : {left, right, both}) {
      if (known.contains(token)) continue;
      damaged_tokenizer(file,
                        fmt::format("merge {} (\"{}\" + \"{}\") needs \"{}\", which is not in the "
                                    "vocabulary",
                                    i, left, right, token));
    }
  }
}

std::pair<std::string, std::string> split_merge(const fs::path& file, std::string_view line,
                                                std::size_t number) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    damaged_tokenizer(file, fmt::format("merge {} (\"{}\") is not two tokens", number, line));
  }
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

void read_merges(const fs::path& file, const json& merges, BpeSpec& spec) {
  if (!merges.is_array()) damaged_tokenizer(file, "no list of merges");
  for (const json& merge : merges) {
    if (merge.is_string()) {
      spec.merges.push_back(
          split_merge(file, merge.get_ref<const std::string&>(), spec.merges.size()));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      spec.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      damaged_tokenizer(file, fmt::format("merge {} is not two tokens", spec.merges.size()));
    }
  }
  check_merges(file, spec);
}

void read_model(const fs::path& file, const json& model, BpeSpec& spec) {
  if (!model.is_object()) damaged_tokenizer(file, "no \"model\"");
  const json& type = member(model, "type");
  if (!type.is_null() && type != "BPE") unsupported(file, fmt::format("model {}", type.dump()));
  if (flag(model, "byte_fallback", false)) unsupported(file, "a BPE model with byte_fallback");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text(model, key).empty()) unsupported(file, fmt::format("model.{}", key));
  }
  if (member(model, "dropout").is_number() && member(model, "dropout") != 0.0) {
    unsupported(file, "model.dropout");
  }
  spec.ignore_merges = flag(model, "ignore_merges", false);
  read_vocab(file, member(model, "vocab"), spec);
  read_merges(file, member(model, "merges"), spec);
}

void read_normalizer(const fs::path& file, const json& step, BpeSpec& spec) {
  if (step.is_null()) return;
  const std::string type = text(step, "type");
  if (type == "Sequence") {
    for (const json& inner : member(step, "normalizers")) read_normalizer(file, inner, spec);
  } else if (type == "NFC") {
    spec.nfc = true;
  } else {
    unsupported(file, fmt::format("normalizer \"{}\"", type));
  }
}

std::string quoted(const std::string& literal) {
  std::string out;
  for (const char c : literal) {
    if (std::string_view(R"(\.[]{}()*+?|^$-#&~/ )").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

void read_split(const fs::path& file, const json& step, BpeSpec& spec) {
  const json& pattern = member(step, "pattern");
  std::string regex = text(pattern, "Regex");
  if (regex.empty()) regex = quoted(text(pattern, "String"));
  if (regex.empty()) damaged_tokenizer(file, "a Split pre-tokenizer without pattern");
  const std::string behavior = text(step, "behavior");
  const bool invert = flag(step, "invert", false);
  if (behavior == "Isolated") {
    spec.splits.push_back({regex, true});  // gaps and matches alike are pieces: invert is the same
  } else if (behavior == "Removed" && invert) {
    spec.splits.push_back({regex, false});
  } else {
    unsupported(file, fmt::format("pre-tokenizer \"Split\" with behavior \"{}\"{}", behavior,
                                  invert ? " and invert" : ""));
  }
}

// Returns whether the step was ByteLevel.
bool read_pre_tokenizer(const fs::path& file, const json& step, BpeSpec& spec) {
  const std::string type = text(step, "type");
  bool byte_level = false;
  if (type == "Sequence") {
    for (const json& inner : member(step, "pretokenizers")) {
      if (byte_level) unsupported(file, "a pre-tokenizer after ByteLevel");
      byte_level = read_pre_tokenizer(file, inner, spec);
    }
  } else if (type == "ByteLevel") {
    if (flag(step, "add_prefix_space", true)) {
      unsupported(file, "pre-tokenizer \"ByteLevel\" with add_prefix_space");
    }
    if (flag(step, "use_regex", true)) spec.splits.push_back({std::string(kGpt2Pattern), true});
    byte_level = true;
  } else if (type == "Split") {
    read_split(file, step, spec);
  } else if (type == "Digits") {
    const bool single = flag(step, "individual_digits", false);
    spec.splits.push_back({single ? R"(\p{N})" : R"(\p{N}+)", true});
  } else {
    unsupported(file, type.empty() ? "a tokenizer without pre-tokenizer"
                                   : fmt::format("pre-tokenizer \"{}\"", type));
  }
  return byte_level;
}

void read_added(const fs::path& file, const json& tokens, BpeSpec& spec) {
  if (!tokens.is_array()) return;
  for (const json& token : tokens) {
    BpeSpec::Added added;
    added.content = text(token, "content");
    if (added.content.empty()) damaged_tokenizer(file, "an added token without content");
    added.id = id_of(file, added.content, member(token, "id"));
    added.special = flag(token, "special", false);
    added.normalized = flag(token, "normalized", !added.special);
    for (const char* key : {"lstrip", "rstrip", "single_word"}) {
      if (flag(token, key, false)) {
        unsupported(file, fmt::format("added token \"{}\" with {}", added.content, key));
      }
    }
    spec.added.push_back(std::move(added));
  }
}

// eos_token of a tokenizer_config.json, else the usual names that the tokenizer has.
void find_eod(const fs::path& folder, BpeSpec& spec) {
  const fs::path config = folder / "tokenizer_config.json";
  std::unordered_set<std::string_view> known;
  for (const auto& [token, id] : spec.vocab) known.insert(token);
  for (const BpeSpec::Added& added : spec.added) known.insert(added.content);
  if (fs::exists(config)) {
    const json parsed = parse(config);
    const json& eos = member(parsed, "eos_token");
    const std::string name = eos.is_string() ? eos.get<std::string>() : text(eos, "content");
    spec.files.push_back(config);
    if (!name.empty() && known.contains(name)) {
      spec.eod = name;
      return;
    }
  }
  for (const std::string_view usual : kUsualEod) {
    if (known.contains(usual)) {
      spec.eod = usual;
      return;
    }
  }
}

}  // namespace

BpeSpec read_tokenizer_json(const fs::path& file) {
  BpeSpec spec;
  spec.files.push_back(file);
  const json root = parse(file);
  try {
    read_model(file, member(root, "model"), spec);
    read_normalizer(file, member(root, "normalizer"), spec);
    if (!read_pre_tokenizer(file, member(root, "pre_tokenizer"), spec)) {
      unsupported(file, "a tokenizer whose pre-tokenizer does not end in ByteLevel");
    }
    read_added(file, member(root, "added_tokens"), spec);
  } catch (const json::exception& error) {
    damaged_tokenizer(file, error.what());
  }
  find_eod(file.parent_path(), spec);
  return spec;
}

BpeSpec read_vocab_and_merges(const fs::path& folder) {
  BpeSpec spec;
  const fs::path vocab = folder / "vocab.json", merges = folder / "merges.txt";
  spec.files = {vocab, merges};
  read_vocab(vocab, parse(vocab), spec);
  const std::string list = read_file(merges);
  std::string_view rest = without_bom(list);
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    spec.merges.push_back(split_merge(merges, line, spec.merges.size()));
  }
  check_merges(merges, spec);
  if (const fs::path more = folder / "added_tokens.json"; fs::exists(more)) {
    spec.files.push_back(more);
    const json parsed = parse(more);
    for (const auto& [token, id] : parsed.items()) {
      spec.added.push_back({token, id_of(more, token, id), true, false});
    }
  }
  find_eod(folder, spec);
  for (const auto& [token, id] : spec.vocab) {
    if (token == spec.eod) spec.added.push_back({token, id, true, false});
  }
  bool qwen = false;
  if (const fs::path config = folder / "tokenizer_config.json"; fs::exists(config)) {
    qwen = text(parse(config), "tokenizer_class").starts_with("Qwen2");
  }
  spec.nfc = qwen;
  spec.splits.push_back({std::string(qwen ? kQwenPattern : kGpt2Pattern), true});
  return spec;
}

std::string byte_tokenizer_json() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    utf8_append(token, character_of_byte(static_cast<unsigned char>(byte)));
    vocab[token] = byte;
  }
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", false},
                           {"use_regex", false}};
  const json added = {
      {"id", 256},       {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false}, {"normalized", false},        {"special", true}};
  const json root = {{"version", "1.0"},
                     {"added_tokens", json::array({added})},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", nullptr},
                     {"decoder", byte_level},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
  return root.dump(1) + "\n";
}

char32_t character_of_byte(unsigned char byte) {
  const auto printable = [](unsigned b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  if (printable(byte)) return byte;
  char32_t next = 0x100;
  for (unsigned b = 0; b < byte; ++b) next += printable(b) ? 0 : 1;
  return next;
}

std::string bytes_of_token(const std::string& token, bool* all_mapped) {
  static const auto kBytes = [] {
    std::unordered_map<char32_t, char> bytes;
    for (int b = 0; b < 256; ++b) {
      bytes[character_of_byte(static_cast<unsigned char>(b))] = static_cast<char>(b);
    }
    return bytes;
  }();
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    const auto found = kBytes.find(utf8_next(token, at));
    if (found == kBytes.end()) {
      if (all_mapped != nullptr) *all_mapped = false;
      return token;
    }
    out += found->second;
  }
  if (all_mapped != nullptr) *all_mapped = true;
  return out;
}

}  // namespace quatrain
