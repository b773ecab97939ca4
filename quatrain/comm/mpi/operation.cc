// SPDX-License-Identifier: Apache-2.0
// The walk through chunks and phases, and the plain transfer.
#include "quatrain/comm/mpi/operation.h"

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "quatrain/comm/describe.h"

namespace quatrain {
namespace {

// Large enough to run at the memory's speed, small enough that one call of MPI is not felt by a
// caller who posts meanwhile.
constexpr std::int64_t kTransferChunkBytes = std::int64_t{4} << 20;

std::int64_t num_chunks(const MpiPieces& pieces, std::int64_t chunk_bytes) {
  std::int64_t longest = 1;
  for (const MpiPiece& piece : pieces) longest = std::max(longest, piece.bytes);
  return (longest - 1) / chunk_bytes + 1;
}

class Transfer final : public MpiOperation {
 public:
  Transfer(const MpiCall& call, MpiTransfer transfer)
      : MpiOperation(call), transfer_(std::move(transfer)) {
    std::int64_t chunks = 1;
    if (transfer_.chunked) {
      chunk_bytes_ = kTransferChunkBytes;
      chunks = std::max(num_chunks(transfer_.out_pieces, chunk_bytes_),
                        num_chunks(transfer_.in_pieces, chunk_bytes_));
    }
    plan(chunks, 1);
  }

 private:
  static std::byte* bytes_of(const at::Tensor& x) {
    return x.defined() ? static_cast<std::byte*>(x.data_ptr()) : nullptr;
  }
  void post(const Step& step, MpiExchange& exchange) override {
    exchange_chunks(step, exchange, {bytes_of(transfer_.out), &transfer_.out_pieces},
                    {bytes_of(transfer_.in), &transfer_.in_pieces}, chunk_bytes_,
                    !transfer_.chunked);
  }

  MpiTransfer transfer_;
  std::int64_t chunk_bytes_ = INT64_MAX;
};

}  // namespace

MpiPiece chunk_of(const MpiPiece& piece, std::int64_t chunk, std::int64_t chunk_bytes) {
  if (chunk == 0) {
    return {.begin = piece.begin, .bytes = std::min(piece.bytes, chunk_bytes)};
  }
  const std::int64_t at = chunk * chunk_bytes;
  if (at >= piece.bytes) return {};
  return {.begin = piece.begin + at, .bytes = std::min(piece.bytes - at, chunk_bytes)};
}

void MpiOperation::plan(std::int64_t chunks, int phases) {
  chunks_ = chunks;
  phases_ = phases;
  const int lanes = chunks < kLanes ? static_cast<int>(chunks) : kLanes;
  lanes_.reserve(static_cast<std::size_t>(lanes));
  for (int lane = 0; lane < lanes; ++lane) {
    lanes_.push_back({.step = {.lane = lane, .chunk = lane, .phase = 0},
                      .exchange = MpiExchange(link()),
                      .posted = false});
  }
}

void MpiOperation::exchange_chunks(const Step& step, MpiExchange& exchange, Side out, Side in,
                                   std::int64_t chunk_bytes, bool to_self) const {
  const int size = link().size();
  const int first = to_self ? 0 : 1;
  // From the next rank onwards: no rank is everybody's first. Sends first: a receive whose message
  // is there copies it at once, and the peer would wait meanwhile for ours.
  for (int i = first; i < size; ++i) {
    const int to = (link().rank + i) % size;
    const MpiPiece piece =
        chunk_of((*in.pieces)[static_cast<std::size_t>(to)], step.chunk, chunk_bytes);
    if (piece.bytes >= 0) exchange.send(to, in.data + piece.begin, piece.bytes, tag(step));
  }
  for (int i = first; i < size; ++i) {
    const int from = (link().rank + size - i) % size;
    const MpiPiece piece =
        chunk_of((*out.pieces)[static_cast<std::size_t>(from)], step.chunk, chunk_bytes);
    if (piece.bytes >= 0) exchange.receive(from, out.data + piece.begin, piece.bytes, tag(step));
  }
}

bool MpiOperation::advance() {
  bool moved = false;
  bool left = false;
  for (Lane& lane : lanes_) {
    try {
      while (lane.step.chunk < chunks_ && advance(lane)) moved = true;
    } catch (const std::exception& error) {
      fail(error.what());
    }
    left = left || lane.step.chunk < chunks_;
  }
  if (!left) finished_.store(true, std::memory_order_release);
  return moved;
}

// One step of one lane; false when its messages are on their way, or when all is over.
bool MpiOperation::advance(Lane& lane) {
  if (!lane.posted) {
    if (finished()) return false;
    lane.posted = true;
    post(lane.step, lane.exchange);
  }
  const bool done = lane.exchange.test();
  if (!lane.exchange.error().empty()) fail(lane.exchange.error());
  if (!done || finished()) return false;
  arrived(lane.step);
  lane.posted = false;
  if (++lane.step.phase == phases_) {
    lane.step.phase = 0;
    lane.step.chunk += kLanes;
  }
  return true;
}

void MpiOperation::fail(const std::string& why) {
  if (finished()) return;
  failure_ = why;
  finished_.store(true, std::memory_order_release);
}

bool MpiOperation::settled() const {
  return finished() && std::all_of(lanes_.begin(), lanes_.end(),
                                   [](const Lane& lane) { return lane.exchange.empty(); });
}

std::vector<int> MpiOperation::absent() const {
  std::set<int> peers;
  if (!finished()) {
    for (const Lane& lane : lanes_) lane.exchange.add_pending(peers);
  }
  std::vector<int> ranks;
  for (int peer : peers) ranks.push_back(link().ranks[static_cast<std::size_t>(peer)]);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::string MpiOperation::where() const {
  return quatrain::where("mpi", call_.operation, call_.sequence, link().name, link().ranks);
}

MpiOperationPtr make_mpi_transfer(const MpiCall& call, MpiTransfer transfer) {
  return std::make_shared<Transfer>(call, std::move(transfer));
}

}  // namespace quatrain
