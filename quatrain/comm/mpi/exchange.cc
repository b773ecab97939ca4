// SPDX-License-Identifier: Apache-2.0
// Point-to-point messages and their completion.
#include "quatrain/comm/mpi/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{1} << 30;

void check_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) throw CommError(fmt::format("{} failed: {}", call, mpi_error(code)));
}

}  // namespace

std::string mpi_error(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) return "unknown MPI error";
  return {text.data(), static_cast<std::size_t>(length)};
}

MPI_Comm make_group_comm(MPI_Comm parent, std::span<const int> ranks, int tag) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(parent, &all), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &members),
            "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(parent, members, tag, &comm), "MPI_Comm_create_group");
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Group_free(&members);
  MPI_Group_free(&all);
  return comm;
}

template <typename Pointer, typename Post>
void MpiExchange::post_blocks(Pointer data, std::int64_t bytes, int peer, Post post) {
  std::int64_t at = 0;
  do {
    const int block = static_cast<int>(std::min(bytes - at, kBlockBytes));
    requests_.push_back(MPI_REQUEST_NULL);
    messages_.push_back({.peer = peer, .bytes = block, .receive = false});
    ++left_;
    post(data + at, block, &requests_.back());
    at += block;
  } while (at < bytes);
}

void MpiExchange::send(int to, const void* data, std::int64_t bytes, int tag) {
  post_blocks(static_cast<const char*>(data), bytes, to,
              [&](const char* block, int count, MPI_Request* request) {
                check_mpi(MPI_Isend(block, count, MPI_BYTE, to, tag, link_->comm, request),
                          "MPI_Isend");
              });
}

void MpiExchange::receive(int from, void* data, std::int64_t bytes, int tag) {
  post_blocks(
      static_cast<char*>(data), bytes, from, [&](char* block, int count, MPI_Request* request) {
        messages_.back().receive = true;
        check_mpi(MPI_Irecv(block, count, MPI_BYTE, from, tag, link_->comm, request), "MPI_Irecv");
      });
}

std::string MpiExchange::problem(const Message& message, const MPI_Status& status,
                                 bool failed) const {
  const int peer = link_->ranks[static_cast<std::size_t>(message.peer)];
  if (failed && status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) {
    int kind = MPI_SUCCESS;
    MPI_Error_class(status.MPI_ERROR, &kind);
    if (kind == MPI_ERR_TRUNCATE) {
      return fmt::format("rank {} sent more than the {} bytes that belong here", peer,
                         message.bytes);
    }
    return fmt::format("the link to rank {} failed: {}", peer, mpi_error(status.MPI_ERROR));
  }
  int bytes = 0;
  if (!message.receive || MPI_Get_count(&status, MPI_BYTE, &bytes) != MPI_SUCCESS) return {};
  if (bytes == message.bytes) return {};
  return fmt::format("rank {} sent {} bytes where {} belong", peer, bytes, message.bytes);
}

bool MpiExchange::test() {
  if (left_ > 0) {
    finished_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  finished_.data(), statuses_.data());
    const bool failed = code == MPI_ERR_IN_STATUS;
    if (!failed) check_mpi(code, "MPI_Testsome");
    if (count == MPI_UNDEFINED) count = 0;
    left_ -= static_cast<std::size_t>(count);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const Message& message = messages_[static_cast<std::size_t>(finished_[i])];
      std::string found = problem(message, statuses_[i], failed);
      if (error_.empty()) error_ = std::move(found);
    }
  }
  if (left_ > 0) return false;
  requests_.clear();
  messages_.clear();
  return true;
}

void MpiExchange::add_pending(std::set<int>& peers) const {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) peers.insert(messages_[i].peer);
  }
}

}  // namespace quatrain
