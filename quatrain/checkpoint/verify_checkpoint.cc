// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "quatrain/checkpoint/exchange.h"
#include "quatrain/checkpoint/inspect.h"
#include "quatrain/checkpoint/rank_file.h"
#include "quatrain/checkpoint/reader.h"
#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/checkpoint/safetensors_dtype.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/checkpoint/storage.h"
#include "quatrain/mesh/shape.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kHeaderLengthBytes = 8;

std::string where_of(std::string_view dtype, const std::vector<std::int64_t>& shape,
                     std::int64_t begin, std::int64_t end) {
  return fmt::format("{} [{}] at bytes {} to {}", dtype, fmt::join(shape, ", "), begin, end);
}

class Verifier {
 public:
  Verifier(FileSystem& files, const fs::path& checkpoint)
      : files_(files), path_(checkpoint), reader_(files, checkpoint) {}

  Problems run() {
    for (std::size_t place = 0; place < reader_.manifest().files.size(); ++place) {
      check_file(place);
    }
    check_values();
    return std::move(problems_);
  }

 private:
  void found(const fs::path& where, const Failure& failure) {
    if (failure) problems_.push_back({where.string(), failure.text, ""});
  }

  // Size, header, and that the header lists what the manifest does.
  void check_file(std::size_t place) {
    const FileRecord& record = reader_.manifest().files[place];
    const fs::path path = path_ / record.name;
    const Failure failure = attempt([&] {
      InputFile file(files_, path);
      if (file.size() != record.bytes) {
        throw DataError(fmt::format("{} bytes where {} were written", file.size(), record.bytes));
      }
      std::string header(static_cast<std::size_t>(record.header_bytes), '\0');
      file.read(std::as_writable_bytes(std::span(header)), 0);
      if (checksum(header) != record.header) {
        throw DataError("its header does not have its checksum");
      }
      compare_header(place, header);
    });
    if (failure) unreadable_.insert(place);
    found(path, failure);
  }

  void compare_header(std::size_t place, std::string_view header) {
    const FileRecord& record = reader_.manifest().files[place];
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < kHeaderLengthBytes && i < header.size(); ++i) {
      length |= static_cast<std::uint64_t>(static_cast<unsigned char>(header[i])) << (8 * i);
    }
    if (header.size() < kHeaderLengthBytes || length != header.size() - kHeaderLengthBytes) {
      throw DataError("its header has another length than the manifest says");
    }
    const SafetensorsHeader parsed = parse_safetensors_header(header.substr(kHeaderLengthBytes),
                                                              record.bytes - record.header_bytes);
    std::set<std::string> in_file, in_manifest;
    for (const TensorEntry& entry : parsed.tensors) {
      in_file.insert(entry.name + ": " +
                     where_of(entry.dtype, entry.shape, record.header_bytes + entry.begin,
                              record.header_bytes + entry.end));
    }
    for (const TensorRecord& tensor : reader_.manifest().tensors) {
      for (const PieceRecord& piece : tensor.pieces) {
        if (piece.file != place) continue;
        in_manifest.insert(fmt::format("{}: {}", piece_key(tensor.id, piece.box),
                                       where_of(tensor.dtype, piece.box.size, piece.begin,
                                                piece.begin + bytes_of(piece, tensor.dtype))));
      }
    }
    if (in_file == in_manifest) return;
    const auto differs =
        std::mismatch(in_file.begin(), in_file.end(), in_manifest.begin(), in_manifest.end());
    throw DataError(
        fmt::format("its header says {} where the manifest says {}",
                    differs.first == in_file.end() ? "nothing more" : *differs.first,
                    differs.second == in_manifest.end() ? "nothing more" : *differs.second));
  }

  // Each piece by itself, so that every damaged one is named.
  void check_values() {
    for (const TensorRecord& tensor : reader_.manifest().tensors) {
      for (const PieceRecord& piece : tensor.pieces) {
        if (unreadable_.contains(piece.file)) continue;
        const fs::path path = path_ / reader_.manifest().files[piece.file].name;
        found(path, attempt([&] { reader_.verify(tensor, piece); }));
      }
    }
  }

  FileSystem& files_;
  fs::path path_;
  CheckpointReader reader_;
  std::set<std::size_t> unreadable_;
  Problems problems_;
};

}  // namespace

Problems verify_checkpoint(FileSystem& files, const fs::path& checkpoint) {
  Problems problems;
  const Failure failure = attempt([&] { problems = Verifier(files, checkpoint).run(); });
  if (failure) problems.push_back({checkpoint.string(), failure.text, ""});
  return problems;
}

}  // namespace quatrain
