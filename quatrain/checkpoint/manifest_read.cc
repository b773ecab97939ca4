// SPDX-License-Identifier: Apache-2.0
// The manifest from text that may be damaged or anybody's: nothing in it is believed before it is
// checked against the rest.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>
#include <span>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/box.h"
#include "quatrain/checkpoint/json_scanner.h"
#include "quatrain/checkpoint/manifest.h"
#include "quatrain/checkpoint/manifest_format.h"
#include "quatrain/checkpoint/safetensors_dtype.h"
#include "quatrain/checkpoint/tiles.h"

namespace quatrain {
namespace {

// The members that an object must have, each once and no other.
struct Field {
  std::string_view name;
  std::function<void()> read;
};

void read_object(JsonScanner& json, std::span<const Field> fields) {
  std::vector<bool> seen(fields.size(), false);
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == key; });
    if (field == fields.end()) json.fail(fmt::format("unknown member \"{}\"", key));
    const auto place = static_cast<std::size_t>(field - fields.begin());
    if (seen[place]) json.fail(fmt::format("\"{}\" twice", key));
    seen[place] = true;
    field->read();
  }
  const auto missing = std::find(seen.begin(), seen.end(), false);
  if (missing == seen.end()) return;
  json.fail(
      fmt::format("no \"{}\"", fields[static_cast<std::size_t>(missing - seen.begin())].name));
}

class Reader {
 public:
  explicit Reader(std::string_view text) : json_(text) {}

  Manifest read() {
    read_object({{"format", [this] { expect(kManifestFormat); }},
                 {"version", [this] { read_version(); }},
                 {"library", [this] { json_.string(manifest_.state.library); }},
                 {"checksum", [this] { expect(kChecksumName); }},
                 {"step", number(manifest_.state.step)},
                 {"tokens", number(manifest_.state.tokens)},
                 {"seed", [this] { read_seed(); }},
                 {"optimizer_steps", number(manifest_.state.optimizer_steps)},
                 {"data_cursor", [this] { numbers(manifest_.state.data_cursor); }},
                 {"plan_hash", [this] { json_.string(manifest_.state.plan_hash); }},
                 {"plan", [this] { manifest_.state.plan = json_.raw_value(); }},
                 {"extra", [this] { read_extra(); }},
                 {"files", [this] { read_files(); }},
                 {"tensors", [this] { read_tensors(); }},
                 {"manifest_checksum", [this] { json_.string(text_); }}});
    json_.end();
    return std::move(manifest_);
  }

 private:
  void read_object(std::initializer_list<Field> fields) {
    quatrain::read_object(json_, std::span(fields.begin(), fields.size()));
  }
  std::function<void()> number(std::int64_t& into) {
    return [this, &into] { into = json_.integer(); };
  }
  void numbers(std::vector<std::int64_t>& into) {
    json_.open_array();
    while (json_.next_element()) into.push_back(json_.integer());
  }
  void expect(std::string_view want) {
    json_.string(text_);
    if (text_ != want) json_.fail(fmt::format("\"{}\" where \"{}\" is due", text_, want));
  }
  void read_version() {
    const std::int64_t version = json_.integer();
    if (version == kCheckpointVersion) return;
    json_.fail(fmt::format("format version {}; this program reads version {}", version,
                           kCheckpointVersion));
  }
  void read_seed() {
    json_.string(text_);
    std::uint64_t& seed = manifest_.state.seed;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), seed);
    if (error != std::errc{} || end != text_.data() + text_.size()) {
      json_.fail(fmt::format("seed \"{}\" is not a number of 64 bits", text_));
    }
  }
  void read_extra() {
    json_.open_object();
    std::string name;
    while (json_.next_key(name)) {
      std::string value;
      json_.string(value);
      if (!manifest_.state.extra.emplace(name, value).second) {
        json_.fail(fmt::format("\"{}\" twice", name));
      }
    }
  }
  void checksums(std::vector<Checksum>& into) {
    json_.string(text_);
    const std::string_view digits = text_;
    if (digits.size() % kChecksumDigits != 0) json_.fail("checksums of 32 digits each are due");
    into.reserve(digits.size() / kChecksumDigits);
    for (std::size_t at = 0; at < digits.size(); at += kChecksumDigits) {
      const auto sum = checksum_from_hex(digits.substr(at, kChecksumDigits));
      if (!sum) json_.fail("a checksum that is not lower-case hexadecimal");
      into.push_back(*sum);
    }
  }

  void read_files();
  void read_file(FileRecord& file);
  void read_tensors();
  void read_tensor(TensorRecord& tensor);
  void read_piece(TensorRecord& tensor);
  void check_shape(const TensorRecord& tensor) const;
  void check_piece(const TensorRecord& tensor, const PieceRecord& piece, std::int64_t end) const;
  std::size_t file_called(std::string_view name) const;

  JsonScanner json_;
  std::string text_;
  Manifest manifest_;
};

// A name that stays in its folder, whatever the system.
bool is_plain(std::string_view name) {
  return name.ends_with(".safetensors") && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
         });
}

void Reader::read_files() {
  json_.open_array();
  while (json_.next_element()) {
    FileRecord& file = manifest_.files.emplace_back();
    read_file(file);
    const std::size_t n = manifest_.files.size();
    if (n > 1 && manifest_.files[n - 2].name >= file.name) {
      json_.fail(fmt::format("file \"{}\" out of order or twice", file.name));
    }
  }
}

void Reader::read_file(FileRecord& file) {
  std::vector<Checksum> header;
  read_object({{"name", [&] { json_.string(file.name); }},
               {"bytes", number(file.bytes)},
               {"header_bytes", number(file.header_bytes)},
               {"header_checksum", [&] { checksums(header); }}});
  if (!is_plain(file.name)) json_.fail(fmt::format("unfit file name \"{}\"", file.name));
  if (header.size() != 1) json_.fail("one header checksum is due");
  if (file.header_bytes > file.bytes) json_.fail("a header longer than its file");
  file.header = header.front();
}

void Reader::read_tensors() {
  json_.open_array();
  while (json_.next_element()) {
    TensorRecord& tensor = manifest_.tensors.emplace_back();
    read_tensor(tensor);
    const std::size_t n = manifest_.tensors.size();
    if (n > 1 && manifest_.tensors[n - 2].id >= tensor.id) {
      json_.fail(fmt::format("{} out of order or twice", to_string(tensor.id)));
    }
  }
}

void Reader::read_tensor(TensorRecord& tensor) {
  read_object({{"name", [&] { json_.string(tensor.id.name); }},
               {"kind", [&] { json_.string(tensor.id.kind); }},
               {"dtype", [&] { json_.string(tensor.dtype); }},
               {"shape", [&] { numbers(tensor.shape); }},
               {"pieces", [&] {
                  check_shape(tensor);
                  json_.open_array();
                  while (json_.next_element()) read_piece(tensor);
                }}});
  check_shape(tensor);
}

void Reader::check_shape(const TensorRecord& tensor) const {
  const SafetensorsDtype* dtype = find_safetensors_dtype(tensor.dtype);
  if (dtype == nullptr || !dtype->scalar) {
    json_.fail(fmt::format("{} has unknown dtype \"{}\"", to_string(tensor.id), tensor.dtype));
  }
  std::int64_t bytes = dtype->bits / 8;
  for (const std::int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) {
      json_.fail(fmt::format("the shape of {} overflows 63 bits", to_string(tensor.id)));
    }
  }
}

std::size_t Reader::file_called(std::string_view name) const {
  const auto& files = manifest_.files;
  const auto file =
      std::lower_bound(files.begin(), files.end(), name,
                       [](const FileRecord& f, std::string_view n) { return f.name < n; });
  if (file == files.end() || file->name != name) {
    json_.fail(fmt::format("file \"{}\" is not listed", name));
  }
  return static_cast<std::size_t>(file - files.begin());
}

void Reader::read_piece(TensorRecord& tensor) {
  PieceRecord& piece = tensor.pieces.emplace_back();
  std::vector<std::int64_t> bytes;
  read_object({{"offset", [&] { numbers(piece.box.begin); }},
               {"size", [&] { numbers(piece.box.size); }},
               {"file",
                [&] {
                  json_.string(text_);
                  piece.file = file_called(text_);
                }},
               {"bytes", [&] { numbers(bytes); }},
               {"tile", [&] { numbers(piece.tile); }},
               {"checksums", [&] { checksums(piece.checksums); }}});
  if (bytes.size() != 2) json_.fail("a byte range is two numbers");
  piece.begin = bytes[0];
  check_piece(tensor, piece, bytes[1]);
}

void Reader::check_piece(const TensorRecord& tensor, const PieceRecord& piece,
                         std::int64_t end) const {
  const auto refuse = [&](std::string_view what) {
    json_.fail(fmt::format("a piece of {}: {}", to_string(tensor.id), what));
  };
  if (!inside(piece.box, tensor.shape)) refuse("it lies outside of the tensor");
  const FileRecord& file = manifest_.files[piece.file];
  if (piece.begin < file.header_bytes || end > file.bytes) refuse("it lies outside of its file");
  // Not a sum, which could overflow.
  if (end - piece.begin != bytes_of(piece, tensor.dtype)) refuse("its byte range has another size");
  if (piece.tile.size() != tensor.shape.size()) refuse("its tile has another rank");
  for (std::size_t dim = 0; dim < piece.tile.size(); ++dim) {
    if (piece.tile[dim] < 1 || piece.tile[dim] > std::max<std::int64_t>(tensor.shape[dim], 1)) {
      refuse("its tile does not fit the tensor");
    }
  }
  const TileGrid grid{piece.box.size, piece.tile};
  if (grid.count() != static_cast<std::int64_t>(piece.checksums.size())) {
    refuse(fmt::format("{} checksums for {} tiles", piece.checksums.size(), grid.count()));
  }
}

}  // namespace

Manifest manifest_from_json(std::string_view text) {
  if (text.size() < kTailBytes) throw DataError("it is cut short");
  const std::string_view body = text.substr(0, text.size() - kTailBytes);
  if (text.substr(body.size()) != manifest_tail(body)) {
    throw DataError("it does not have the checksum that it ends with, or is cut short");
  }
  return Reader(text).read();
}

}  // namespace quatrain
