// SPDX-License-Identifier: Apache-2.0
// Writes safetensors files in the reference's canonical form, streamed tensor by tensor.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "quatrain/base/error.h"
#include "quatrain/checkpoint/json_scanner.h"
#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/checkpoint/safetensors_dtype.h"

namespace quatrain {
namespace {

using NamedTensor = std::pair<std::string, at::Tensor>;

[[noreturn]] void fail(const char* what, const std::filesystem::path& path) {
  throw StorageError(fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

[[noreturn]] void bug(std::string_view what, std::string_view why) {
  throw BugError(fmt::format("write_safetensors: \"{}\": {}", what, why));
}

// A file under a temporary name until commit(); removed when that does not come.
class PendingFile {
 public:
  explicit PendingFile(const std::filesystem::path& path)
      : path_(path), temporary_(path.string() + fmt::format(".tmp{}", ::getpid())) {
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file_ < 0) fail("cannot create", temporary_);
  }
  ~PendingFile() {
    if (file_ >= 0) ::close(file_);
    if (!committed_) ::unlink(temporary_.c_str());
  }
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void write(const void* data, std::size_t size) {
    const auto* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = ::write(file_, at, std::min<std::size_t>(size, 1U << 30));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("cannot write", temporary_);
      at += written;
      size -= static_cast<std::size_t>(written);
    }
  }

  void commit() {
    if (::fsync(file_) != 0) fail("cannot flush", temporary_);
    const int closed = ::close(file_);
    file_ = -1;
    if (closed != 0) fail("cannot close", temporary_);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename to", path_);
    committed_ = true;
    sync_folder();
  }

 private:
  void sync_folder() const {
    const std::filesystem::path parent = path_.parent_path();
    const std::filesystem::path folder = parent.empty() ? "." : parent;
    const int handle = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) fail("cannot open folder", folder);
    const int synced = ::fsync(handle);
    ::close(handle);
    if (synced != 0) fail("cannot flush folder", folder);
  }

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int file_ = -1;
  bool committed_ = false;
};

const SafetensorsDtype& dtype_of(const NamedTensor& named) {
  const SafetensorsDtype* dtype = find_safetensors_dtype(named.second.scalar_type());
  if (dtype == nullptr) bug(named.first, "safetensors does not know its dtype");
  return *dtype;
}

std::vector<const NamedTensor*> in_file_order(const std::vector<NamedTensor>& tensors) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& named : tensors) order.push_back(&named);
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int rank_a = dtype_of(*a).rank;
    const int rank_b = dtype_of(*b).rank;
    return rank_a != rank_b ? rank_a > rank_b : a->first < b->first;
  });
  return order;
}

void append_name(std::string& out, std::string_view text) {
  if (find_invalid_utf8(text) != std::string_view::npos) bug(text, "not UTF-8");
  append_quoted(out, text);
}

std::vector<TensorEntry> entries_of(const std::vector<const NamedTensor*>& order) {
  std::vector<TensorEntry> entries;
  std::int64_t offset = 0;
  for (const NamedTensor* named : order) {
    const at::Tensor& tensor = named->second;
    const std::int64_t end = offset + tensor.numel() * static_cast<std::int64_t>(tensor.itemsize());
    entries.push_back(
        {named->first, std::string(dtype_of(*named).name), tensor.sizes().vec(), offset, end});
    offset = end;
  }
  return entries;
}

// What we write, we can read: no repeated, empty or reserved name.
void check_readable(const std::vector<TensorEntry>& entries, std::string_view json) {
  for (const TensorEntry& entry : entries) {
    if (entry.name == "__metadata__") bug(entry.name, "reserved");
  }
  try {
    parse_safetensors_header(json, entries.empty() ? 0 : entries.back().end);
  } catch (const DataError& error) {
    bug("header", error.what());
  }
}

}  // namespace

std::string make_safetensors_header(const std::vector<TensorEntry>& entries,
                                    const std::map<std::string, std::string>& metadata) {
  std::string out(8, '\0');
  out.push_back('{');
  auto separate = [&out] {
    if (out.back() != '{') out.push_back(',');
  };
  if (!metadata.empty()) {
    out += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      separate();
      append_name(out, key);
      out.push_back(':');
      append_name(out, value);
    }
    out.push_back('}');
  }
  for (const TensorEntry& entry : entries) {
    separate();
    append_name(out, entry.name);
    fmt::format_to(std::back_inserter(out),
                   ":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", entry.dtype,
                   fmt::join(entry.shape, ","), entry.begin, entry.end);
  }
  out.push_back('}');
  out.resize((out.size() + 7) / 8 * 8, ' ');
  const std::size_t length = out.size() - 8;
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>((length >> (8 * i)) & 0xFF);
  check_readable(entries, std::string_view(out).substr(8));
  return out;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<const NamedTensor*> order = in_file_order(tensors);
  const std::string header = make_safetensors_header(entries_of(order), metadata);

  PendingFile file(path);
  file.write(header.data(), header.size());
  for (const NamedTensor* named : order) {
    const at::Tensor tensor = named->second.detach().to(at::kCPU).contiguous();
    file.write(tensor.data_ptr(), tensor.nbytes());
  }
  file.commit();
}

}  // namespace quatrain
