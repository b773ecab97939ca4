// SPDX-License-Identifier: Apache-2.0
// Writes Megatron's .idx and .bin: ids stream to a temporary .bin, the index stays in memory (4
// bytes a document) and is written last; both get their names only when complete.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/data/megatron_index.h"
#include "quatrain/data/token_file.h"

namespace quatrain {

namespace fs = std::filesystem;

struct MegatronWriter::Impl {
  fs::path bin, idx, temporary;
  std::int64_t vocab = 0;
  TokenType type = TokenType::kU16;
  int fd = -1;
  std::string buffer;
  std::vector<std::int32_t> lengths;
  std::int64_t tokens = 0;
  bool finished = false;

  [[noreturn]] void fail(const char* what) const {
    throw StorageError(fmt::format("{}: {}: {}", temporary.string(), what, std::strerror(errno)));
  }
  void flush() {
    const char* from = buffer.data();
    std::size_t left = buffer.size();
    while (left > 0) {
      const ssize_t wrote = ::write(fd, from, left);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) fail("cannot write");
      from += wrote;
      left -= static_cast<std::size_t>(wrote);
    }
    buffer.clear();
  }
  std::string index() const;
};

namespace {

template <class T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::int64_t kSmallVocab = 65500;  // below it Megatron stores u16

}  // namespace

std::string MegatronWriter::Impl::index() const {
  std::string out(kMegatronMagic);
  append<std::uint64_t>(out, 1);
  append<std::uint8_t>(out, static_cast<std::uint8_t>(megatron_code(type)));
  append<std::uint64_t>(out, lengths.size());
  append<std::uint64_t>(out, lengths.size() + 1);
  for (const std::int32_t length : lengths) append(out, length);
  std::int64_t pointer = 0;
  for (const std::int32_t length : lengths) {
    append(out, pointer);
    pointer += length * width(type);
  }
  for (std::size_t i = 0; i <= lengths.size(); ++i) append(out, static_cast<std::int64_t>(i));
  return out;
}

MegatronWriter::MegatronWriter(const fs::path& prefix, std::int64_t vocab)
    : impl_(std::make_unique<Impl>()) {
  CHECK(vocab > 0, "vocabulary of {}", vocab);
  impl_->bin = fs::path(prefix) += ".bin";
  impl_->idx = fs::path(prefix) += ".idx";
  impl_->temporary = fs::path(impl_->bin) +=
      fmt::format(".tmp-{}-{}", ::getpid(), fmt::ptr(impl_.get()));
  impl_->vocab = vocab;
  impl_->type = vocab < kSmallVocab ? TokenType::kU16 : TokenType::kI32;
  if (prefix.has_parent_path()) {
    std::error_code error;
    fs::create_directories(prefix.parent_path(), error);
    if (error) {
      throw StorageError(fmt::format("{}: {}", prefix.parent_path().string(), error.message()));
    }
  }
  impl_->fd = ::open(impl_->temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (impl_->fd < 0) impl_->fail("cannot create");
}

MegatronWriter::~MegatronWriter() {
  if (impl_->fd >= 0) ::close(impl_->fd);
  if (!impl_->finished) ::unlink(impl_->temporary.c_str());
}

void MegatronWriter::add_document(std::span<const std::int64_t> ids) {
  CHECK(!impl_->finished, "add_document after finish");
  if (ids.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw DataError(
        fmt::format("{}: document {} has {} tokens; Megatron's index holds at most "
                    "2147483647 a document: split it",
                    impl_->bin.string(), impl_->lengths.size(), ids.size()));
  }
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= impl_->vocab) {
      throw DataError(fmt::format(
          "{}: document {} has id {}, which does not fit a vocabulary of "
          "{} stored as {}",
          impl_->bin.string(), impl_->lengths.size(), id, impl_->vocab, name(impl_->type)));
    }
  }
  with_token_type(impl_->type, [&](auto type) {
    for (const std::int64_t id : ids) {
      append(impl_->buffer, static_cast<decltype(type)>(id));
      if (impl_->buffer.size() >= kBufferBytes) impl_->flush();
    }
  });
  impl_->lengths.push_back(static_cast<std::int32_t>(ids.size()));
  impl_->tokens += static_cast<std::int64_t>(ids.size());
}

void MegatronWriter::finish() {
  CHECK(!impl_->finished, "finish called twice");
  impl_->flush();
  if (::fsync(impl_->fd) != 0) impl_->fail("cannot flush to disk");
  const int closed = ::close(std::exchange(impl_->fd, -1));
  if (closed != 0) impl_->fail("cannot close");
  std::error_code error;
  fs::rename(impl_->temporary, impl_->bin, error);
  if (error) throw StorageError(fmt::format("{}: {}", impl_->bin.string(), error.message()));
  impl_->finished = true;
  write_file_atomically(impl_->idx, impl_->index());
}

std::int64_t MegatronWriter::num_tokens() const { return impl_->tokens; }
std::int64_t MegatronWriter::num_documents() const {
  return static_cast<std::int64_t>(impl_->lengths.size());
}

}  // namespace quatrain
