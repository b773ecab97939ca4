// SPDX-License-Identifier: Apache-2.0
// The manifest as text: one tensor a line, so that people can read it and tools can compare it.
#include <fmt/format.h>

#include <iterator>

#include "quatrain/checkpoint/json_scanner.h"
#include "quatrain/checkpoint/manifest.h"
#include "quatrain/checkpoint/manifest_format.h"

namespace quatrain {
namespace {

class Writer {
 public:
  Writer& key(std::string_view name) {
    comma();
    append_quoted(text, name);
    text.push_back(':');
    return *this;
  }
  void string(std::string_view value) {
    comma();
    append_quoted(text, value);
  }
  void number(std::int64_t value) {
    comma();
    fmt::format_to(std::back_inserter(text), "{}", value);
  }
  void numbers(const std::vector<std::int64_t>& values) {
    comma();
    fmt::format_to(std::back_inserter(text), "[{}]", fmt::join(values, ","));
  }
  void sums(const std::vector<Checksum>& values) {
    comma();
    text.push_back('"');
    for (const Checksum& value : values) append_hex(text, value);
    text.push_back('"');
  }
  void open(char bracket) {
    comma();
    text.push_back(bracket);
  }
  void close(char bracket) { text.push_back(bracket); }
  void line() {
    comma();
    text.push_back('\n');
  }

  std::string text;

 private:
  void comma() {
    if (text.empty()) return;
    const char last = text.back();
    if (last != '{' && last != '[' && last != ':' && last != '\n') text.push_back(',');
  }
};

void write_state(Writer& out, const TrainingState& state) {
  out.key("step").number(state.step);
  out.key("tokens").number(state.tokens);
  out.key("seed").string(std::to_string(state.seed));
  out.key("optimizer_steps").number(state.optimizer_steps);
  out.key("data_cursor").numbers(state.data_cursor);
  out.key("plan_hash").string(state.plan_hash);
  JsonScanner plan(state.plan);
  out.key("plan").text += plan.raw_value();
  plan.end();
  out.key("extra").open('{');
  for (const auto& [name, value] : state.extra) out.key(name).string(value);
  out.close('}');
}

void write_file(Writer& out, const FileRecord& file) {
  out.open('{');
  out.key("name").string(file.name);
  out.key("bytes").number(file.bytes);
  out.key("header_bytes").number(file.header_bytes);
  out.key("header_checksum").sums({file.header});
  out.close('}');
}

void write_tensor(Writer& out, const TensorRecord& tensor, const Manifest& manifest) {
  out.open('{');
  out.key("name").string(tensor.id.name);
  out.key("kind").string(tensor.id.kind);
  out.key("dtype").string(tensor.dtype);
  out.key("shape").numbers(tensor.shape);
  out.key("pieces").open('[');
  for (const PieceRecord& piece : tensor.pieces) {
    out.open('{');
    out.key("offset").numbers(piece.box.begin);
    out.key("size").numbers(piece.box.size);
    out.key("file").string(manifest.files[piece.file].name);
    out.key("bytes").numbers({piece.begin, piece.begin + bytes_of(piece, tensor.dtype)});
    out.key("tile").numbers(piece.tile);
    out.key("checksums").sums(piece.checksums);
    out.close('}');
  }
  out.close(']');
  out.close('}');
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  Writer out;
  out.open('{');
  out.key("format").string(kManifestFormat);
  out.key("version").number(kCheckpointVersion);
  out.key("library").string(manifest.state.library);
  out.key("checksum").string(kChecksumName);
  write_state(out, manifest.state);
  out.line();
  out.key("files").open('[');
  for (const FileRecord& file : manifest.files) {
    out.line();
    write_file(out, file);
  }
  out.close(']');
  out.line();
  out.key("tensors").open('[');
  for (const TensorRecord& tensor : manifest.tensors) {
    out.line();
    write_tensor(out, tensor, manifest);
  }
  out.close(']');
  out.text += manifest_tail(out.text);
  return out.text;
}

}  // namespace quatrain
