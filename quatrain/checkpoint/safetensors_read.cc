// SPDX-License-Identifier: Apache-2.0
// Reads a mapped safetensors file: length, header, then tensors or rows of them by copy.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/checkpoint/safetensors_dtype.h"
#include "quatrain/checkpoint/safetensors_index.h"

namespace quatrain {
namespace {

IndexedHeader read_header(const MappedFile& file, bool allow_unknown_fields) {
  try {
    return read_indexed_header(file.bytes(), allow_unknown_fields);
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", file.path().string(), error.what()));
  }
}

}  // namespace

struct SafetensorsFile::Impl {
  MappedFile file;
  IndexedHeader indexed;

  Impl(const std::filesystem::path& path, bool allow_unknown_fields)
      : file(path), indexed(read_header(file, allow_unknown_fields)) {}

  const TensorEntry* find(std::string_view name) const {
    return indexed.index.find(indexed.header.tensors, name);
  }

  // Elements from byte `begin` of the buffer on, copied into a new tensor.
  at::Tensor copy(const TensorEntry& entry, std::vector<std::int64_t> shape,
                  std::int64_t begin) const {
    const SafetensorsDtype& dtype = *find_safetensors_dtype(entry.dtype);
    if (!dtype.scalar) {
      throw DataError(fmt::format("{}: tensor \"{}\" has dtype {}, which cannot be read",
                                  file.path().string(), entry.name, entry.dtype));
    }
    at::Tensor out = at::empty(shape, *dtype.scalar);
    const std::size_t bytes = out.nbytes();
    const auto from =
        file.bytes().subspan(static_cast<std::size_t>(indexed.header.buffer_offset + begin));
    auto* to = static_cast<std::byte*>(out.data_ptr());
    if (dtype.scalar == at::kBool) {
      std::transform(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(bytes), to,
                     [](std::byte b) { return b == std::byte{0} ? b : std::byte{1}; });
    } else if (bytes > 0) {
      std::memcpy(to, from.data(), bytes);
    }
    return out;
  }

  // Rows of the entry's elements in `shape`.
  at::Tensor copy_rows(const TensorEntry& entry, std::vector<std::int64_t> shape,
                       std::int64_t begin, std::int64_t end) const {
    if (shape.empty() || begin < 0 || end < begin || end > shape[0]) {
      throw DataError(fmt::format("{}: no rows [{}, {}) in tensor \"{}\" of shape [{}]",
                                  file.path().string(), begin, end, entry.name,
                                  join(entry.shape, ", ")));
    }
    const std::int64_t row_bytes = shape[0] == 0 ? 0 : (entry.end - entry.begin) / shape[0];
    shape[0] = end - begin;
    return copy(entry, std::move(shape), entry.begin + begin * row_bytes);
  }
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, bool allow_unknown_fields)
    : impl_(std::make_unique<Impl>(path, allow_unknown_fields)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;

const SafetensorsHeader& SafetensorsFile::header() const { return impl_->indexed.header; }

bool SafetensorsFile::has(std::string_view name) const { return impl_->find(name) != nullptr; }

const TensorEntry& SafetensorsFile::entry(std::string_view name) const {
  const TensorEntry* entry = impl_->find(name);
  if (entry == nullptr) {
    throw DataError(fmt::format("{}: no tensor \"{}\" among {}", impl_->file.path().string(), name,
                                header().tensors.size()));
  }
  return *entry;
}

at::Tensor SafetensorsFile::tensor(std::string_view name) const {
  const TensorEntry& found = entry(name);
  return impl_->copy(found, found.shape, found.begin);
}

at::Tensor SafetensorsFile::rows(std::string_view name, std::int64_t begin,
                                 std::int64_t end) const {
  const TensorEntry& found = entry(name);
  return impl_->copy_rows(found, found.shape, begin, end);
}

at::Tensor SafetensorsFile::merged_rows(std::string_view name, std::int64_t begin,
                                        std::int64_t end) const {
  const TensorEntry& found = entry(name);
  std::vector<std::int64_t> shape = found.shape;
  if (shape.size() >= 2) {
    shape[1] *= shape[0];
    shape.erase(shape.begin());
  }
  return impl_->copy_rows(found, std::move(shape), begin, end);
}

}  // namespace quatrain
