// SPDX-License-Identifier: Apache-2.0
// Messages in flight between the ranks of one MPI communicator. Every call here and below is made
// under the lock of the Engine: MPI runs at MPI_THREAD_SERIALIZED.
#pragma once
#include <mpi.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace quatrain {

// A group's MPI communicator. Errors are returned, never fatal.
struct MpiLink {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  std::vector<int> ranks;  // of the world, by rank of this group
  std::string name;

  int size() const { return static_cast<int>(ranks.size()); }
};

// The MPI communicator of these ranks of `parent`; only they call. Errors are returned, not fatal.
MPI_Comm make_group_comm(MPI_Comm parent, std::span<const int> ranks, int tag);

// The text of an MPI error code.
std::string mpi_error(int code);

// Messages that belong together. Messages of one tag between two ranks arrive in the order sent.
class MpiExchange {
 public:
  explicit MpiExchange(const MpiLink& link) : link_(&link) {}
  // `data` stays valid until test() is true. Messages of any length, also 0 and above 2 GiB.
  void send(int to, const void* data, std::int64_t bytes, int tag);
  void receive(int from, void* data, std::int64_t bytes, int tag);

  // True when every message has come and gone; then this is empty and may be used again.
  bool test();
  bool empty() const { return left_ == 0; }
  // What went wrong first: a message of another length than expected, a link that failed.
  const std::string& error() const { return error_; }
  // Ranks of the group whose messages are on their way.
  void add_pending(std::set<int>& peers) const;

 private:
  struct Message {
    int peer;
    int bytes;
    bool receive;
  };
  // Blocks of at most 1 GiB: MPI counts in int.
  template <typename Pointer, typename Post>
  void post_blocks(Pointer data, std::int64_t bytes, int peer, Post post);
  std::string problem(const Message& message, const MPI_Status& status, bool failed) const;

  const MpiLink* link_;
  std::vector<MPI_Request> requests_;
  std::vector<Message> messages_;
  std::vector<int> finished_;  // scratch of test()
  std::vector<MPI_Status> statuses_;
  std::size_t left_ = 0;
  std::string error_;
};

}  // namespace quatrain
