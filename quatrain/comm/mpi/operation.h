// SPDX-License-Identifier: Apache-2.0
// Operations in flight as data: a number of chunks, each through the same few phases of messages,
// two chunks at a time (one travels while the other is summed, and their staging stays in cache).
// All of it runs under the MpiEngine's lock, on whichever thread makes progress.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "quatrain/comm/describe.h"
#include "quatrain/comm/mpi/exchange.h"
#include "quatrain/mesh/placement.h"

namespace quatrain {

// Bytes of a contiguous tensor that one rank sends or gets; kNoMessage: not even an empty message.
struct MpiPiece {
  static constexpr std::int64_t kNoMessage = -1;
  std::int64_t begin = 0;
  std::int64_t bytes = kNoMessage;
};
using MpiPieces = std::vector<MpiPiece>;  // by rank of the group

// Which operation of which group this is.
struct MpiCall {
  const MpiLink* link;
  Operation operation;
  std::int64_t sequence;
  int tag;  // the first of MpiOperation::kTags
};

class MpiOperation {
 public:
  static constexpr int kLanes = 2;
  static constexpr int kPhases = 2;
  static constexpr int kTags = kLanes * kPhases;

  explicit MpiOperation(const MpiCall& call) : call_(call) {}
  virtual ~MpiOperation() = default;
  MpiOperation(const MpiOperation&) = delete;
  MpiOperation& operator=(const MpiOperation&) = delete;

  // Moves messages on; true when something moved.
  bool advance();
  // Done, or failed: see failure(). For any thread.
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  // Finished, and nothing is in flight: a failure leaves messages that may still use the tensors.
  bool settled() const;
  const std::string& failure() const { return failure_; }  // empty: none; once finished
  std::vector<int> absent() const;                         // of the world, ascending
  std::string where() const;                               // "mpi all_gather #3 on dp {0, 2}"

 protected:
  struct Step {
    int lane = 0;
    std::int64_t chunk = 0;
    int phase = 0;
  };
  // Posts the messages of a step; then, when all of them have come and gone, what follows.
  virtual void post(const Step& step, MpiExchange& exchange) = 0;
  virtual void arrived(const Step& /*step*/) {}
  // To be called once, before the first advance().
  void plan(std::int64_t chunks, int phases);
  // Chunk `step.chunk` of every piece, to and from every peer.
  struct Side {
    std::byte* data;
    const MpiPieces* pieces;
  };
  void exchange_chunks(const Step& step, MpiExchange& exchange, Side out, Side in,
                       std::int64_t chunk_bytes, bool to_self = false) const;

  const MpiLink& link() const { return *call_.link; }
  int tag(const Step& step) const { return call_.tag + step.lane * kPhases + step.phase; }

 private:
  struct Lane {
    Step step;
    MpiExchange exchange;
    bool posted = false;
  };
  bool advance(Lane& lane);
  void fail(const std::string& why);

  MpiCall call_;
  std::int64_t chunks_ = 1;
  int phases_ = 1;
  std::vector<Lane> lanes_;  // those with chunks to do
  std::string failure_;
  std::atomic<bool> finished_{false};
};

using MpiOperationPtr = std::shared_ptr<MpiOperation>;

// `bytes` of `piece` that belong to chunk `chunk`: an empty piece has one, empty, chunk.
MpiPiece chunk_of(const MpiPiece& piece, std::int64_t chunk, std::int64_t chunk_bytes);

// Every piece of `in` goes to its rank and every piece of `out` comes from its rank; this rank's
// own travels only where not `chunked` (a message to oneself). Tensors are contiguous and held
// until the end.
struct MpiTransfer {
  at::Tensor out;
  MpiPieces out_pieces;
  at::Tensor in;
  MpiPieces in_pieces;
  // Only operations with tags of their own are cut: a second message of the same tags would
  // overtake the later chunks of the first.
  bool chunked = true;
};
MpiOperationPtr make_mpi_transfer(const MpiCall& call, MpiTransfer transfer);

// out = the sum (max, min) over ranks, in their order, of in's piece of this rank. `out` may be
// that piece. Where `gathers`, every rank's sum then comes to every rank's `in`, in place.
struct MpiReduction {
  at::Tensor out;
  at::Tensor in;
  MpiPieces pieces;  // of `in`; they may overlap
  ReduceOp op;
  bool gathers;
};
MpiOperationPtr make_mpi_reduction(const MpiCall& call, MpiReduction reduction);

}  // namespace quatrain
