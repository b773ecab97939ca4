// SPDX-License-Identifier: Apache-2.0
// Reads a mapped safetensors file: length, header, then tensors or rows of them by copy.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/checkpoint/safetensors_dtype.h"
#include "quatrain/checkpoint/safetensors_index.h"

namespace quatrain {
namespace {

SafetensorsHeader read_header(const MappedFile& file, bool allow_unknown_fields) {
  try {
    return read_safetensors_header(file.bytes(), allow_unknown_fields);
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", file.path().string(), error.what()));
  }
}

}  // namespace

struct SafetensorsFile::Impl {
  MappedFile file;
  SafetensorsHeader header;
  NameIndex index;

  Impl(const std::filesystem::path& path, bool allow_unknown_fields)
      : file(path), header(read_header(file, allow_unknown_fields)), index(header.tensors) {}

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
    const auto from = file.bytes().subspan(static_cast<std::size_t>(header.buffer_offset + begin));
    auto* to = static_cast<std::byte*>(out.data_ptr());
    if (dtype.scalar == at::kBool) {
      std::transform(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(bytes), to,
                     [](std::byte b) { return b == std::byte{0} ? b : std::byte{1}; });
    } else if (bytes > 0) {
      std::memcpy(to, from.data(), bytes);
    }
    return out;
  }
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, bool allow_unknown_fields)
    : impl_(std::make_unique<Impl>(path, allow_unknown_fields)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;

const SafetensorsHeader& SafetensorsFile::header() const { return impl_->header; }

bool SafetensorsFile::has(std::string_view name) const {
  return impl_->index.find(impl_->header.tensors, name) != nullptr;
}

const TensorEntry& SafetensorsFile::entry(std::string_view name) const {
  const TensorEntry* entry = impl_->index.find(impl_->header.tensors, name);
  if (entry == nullptr) {
    throw DataError(fmt::format("{}: no tensor \"{}\" among {}", impl_->file.path().string(), name,
                                impl_->header.tensors.size()));
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
  if (found.shape.empty() || begin < 0 || end < begin || end > found.shape[0]) {
    throw DataError(fmt::format("{}: no rows [{}, {}) in tensor \"{}\" of shape [{}]",
                                impl_->file.path().string(), begin, end, name,
                                join(found.shape, ", ")));
  }
  std::vector<std::int64_t> shape = found.shape;
  shape[0] = end - begin;
  const std::int64_t row_bytes =
      found.shape[0] == 0 ? 0 : (found.end - found.begin) / found.shape[0];
  return impl_->copy(found, shape, found.begin + begin * row_bytes);
}

}  // namespace quatrain
