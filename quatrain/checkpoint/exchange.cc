// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <numeric>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

at::Tensor to_tensor(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

std::string to_text(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

at::Tensor number(std::int64_t value) { return at::full({1}, value, at::kLong); }

std::vector<std::int64_t> lengths_of_all(Communicator& comm, const std::string& own) {
  const at::Tensor lengths = at::empty({comm.size()}, at::kLong);
  all_gather(comm, lengths, number(static_cast<std::int64_t>(own.size()))).wait();
  const auto* begin = lengths.const_data_ptr<std::int64_t>();
  return {begin, begin + comm.size()};
}

std::string from_rank(Communicator& comm, int root, const std::string& own) {
  at::Tensor length = number(static_cast<std::int64_t>(own.size()));
  comm.broadcast(length, root).wait();
  at::Tensor bytes =
      comm.rank() == root ? to_tensor(own) : at::empty({length.item<std::int64_t>()}, at::kByte);
  comm.broadcast(bytes, root).wait();
  return to_text(bytes);
}

}  // namespace

std::vector<std::string> texts_of_all(Communicator& comm, const std::string& own) {
  const std::vector<std::int64_t> lengths = lengths_of_all(comm, own);
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const at::Tensor all = at::empty({total}, at::kByte);
  comm.all_gather(all, to_tensor(own), lengths).wait();
  const std::string joined = to_text(all);
  std::vector<std::string> texts;
  std::size_t begin = 0;
  for (const std::int64_t length : lengths) {
    texts.push_back(joined.substr(begin, static_cast<std::size_t>(length)));
    begin += static_cast<std::size_t>(length);
  }
  return texts;
}

std::vector<std::string> texts_on_first(Communicator& comm, const std::string& own) {
  const std::vector<std::int64_t> lengths = lengths_of_all(comm, own);
  if (comm.rank() != 0) {
    comm.send(to_tensor(own), 0).wait();
    return {};
  }
  std::vector<std::string> texts{own};
  for (int rank = 1; rank < comm.size(); ++rank) {
    at::Tensor bytes = at::empty({lengths[static_cast<std::size_t>(rank)]}, at::kByte);
    comm.recv(bytes, rank).wait();
    texts.push_back(to_text(bytes));
  }
  return texts;
}

std::string text_of_first(Communicator& comm, const std::string& own) {
  return from_rank(comm, 0, own);
}

std::int64_t least_of(Communicator& comm, std::int64_t value) {
  at::Tensor least = number(value);
  comm.all_reduce(least, ReduceOp::kMin).wait();
  return least.item<std::int64_t>();
}

Failure attempt(const std::function<void()>& f) {
  try {
    f();
    return {};
  } catch (const CommError&) {
    throw;
  } catch (const DataError& error) {
    return {FailureKind::kData, error.what()};
  } catch (const StorageError& error) {
    return {FailureKind::kStorage, error.what()};
  } catch (const ConfigError& error) {
    return {FailureKind::kConfig, error.what()};
  } catch (const std::exception& error) {
    return {FailureKind::kBug, error.what()};
  }
}

void raise(const Failure& failure) {
  switch (failure.kind) {
    case FailureKind::kNone:
      return;
    case FailureKind::kData:
      throw DataError(failure.text);
    case FailureKind::kStorage:
      throw StorageError(failure.text);
    case FailureKind::kConfig:
      throw ConfigError(failure.text);
    case FailureKind::kBug:
      throw BugError(failure.text);
  }
}

Failure first_failure(Communicator& comm, const Failure& own) {
  const auto root = static_cast<int>(least_of(comm, own ? comm.rank() : comm.size()));
  if (root == comm.size()) return {};
  const auto kind = static_cast<char>('0' + static_cast<int>(own.kind));
  const std::string told = from_rank(comm, root, kind + own.text);
  const std::string who = comm.size() > 1 ? fmt::format("rank {}: ", root) : "";
  return {static_cast<FailureKind>(told[0] - '0'), who + told.substr(1)};
}

}  // namespace quatrain
