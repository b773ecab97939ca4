// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/safetensors_stream.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/checkpoint/safetensors_dtype.h"

namespace quatrain {

std::vector<TensorEntry> in_file_order(std::vector<TensorEntry> entries) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    const int rank_a = find_safetensors_dtype(a.dtype)->rank;
    const int rank_b = find_safetensors_dtype(b.dtype)->rank;
    return rank_a != rank_b ? rank_a > rank_b : a.name < b.name;
  });
  std::int64_t begin = 0;
  for (TensorEntry& entry : entries) {
    const std::int64_t bytes = entry.end - entry.begin;
    entry.begin = std::exchange(begin, begin + bytes);
    entry.end = begin;
  }
  return entries;
}

SafetensorsStream::SafetensorsStream(FileSystem& files, std::filesystem::path path,
                                     const std::vector<TensorEntry>& entries,
                                     const std::map<std::string, std::string>& metadata)
    : files_(files), path_(std::move(path)), temporary_(path_.string() + ".tmp") {
  const std::string header = make_safetensors_header(entries, metadata);
  missing_ = entries.empty() ? 0 : entries.back().end;
  file_.emplace(files_, temporary_);
  file_->write(std::as_bytes(std::span(header)));
}

SafetensorsStream::~SafetensorsStream() {
  if (!file_) return;
  file_.reset();
  files_.remove(temporary_);  // what it answers changes nothing
}

void SafetensorsStream::append(const at::Tensor& values) {
  const at::Tensor here = values.detach().to(at::kCPU).contiguous();
  const auto bytes = static_cast<std::int64_t>(here.nbytes());
  CHECK(bytes <= missing_, "{} bytes too many", bytes - missing_);
  file_->write({static_cast<const std::byte*>(here.const_data_ptr()), here.nbytes()});
  missing_ -= bytes;
}

void SafetensorsStream::finish() {
  CHECK(missing_ == 0, "{} bytes are missing", missing_);
  file_->finish();
  rename_file(files_, temporary_, path_);
  file_.reset();
  sync_folder(files_, path_.parent_path());
}

}  // namespace quatrain
