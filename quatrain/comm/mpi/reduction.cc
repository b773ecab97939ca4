// SPDX-License-Identifier: Apache-2.0
// Sums over ranks by all-to-all, local sum in the order of ranks and, for all_reduce, all-gather:
// the bytes of a ring, and the bits of every other backend. MPI's own reductions would sum in an
// order of the library's choice, and have no bfloat16.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "quatrain/comm/mpi/operation.h"
#include "quatrain/comm/sum.h"

namespace quatrain {
namespace {

// Staging of one lane, all peers together. Of 64 KiB to 1 MiB the longest is the fastest.
constexpr std::int64_t kStagingBytes = std::int64_t{1} << 20;
constexpr std::int64_t kSmallestChunkBytes = std::int64_t{16} << 10;
constexpr std::int64_t kAlign = 64;

class Reduction final : public MpiOperation {
 public:
  Reduction(const MpiCall& call, MpiReduction reduction)
      : MpiOperation(call),
        reduction_(std::move(reduction)),
        own_(reduction_.pieces[static_cast<std::size_t>(link().rank)]) {
    std::int64_t longest = 1;
    for (const MpiPiece& piece : reduction_.pieces) longest = std::max(longest, piece.bytes);
    const std::int64_t peers = std::max(link().size() - 1, 1);
    chunk_bytes_ = std::max(kStagingBytes / peers / kAlign * kAlign, kSmallestChunkBytes);
    chunk_bytes_ = std::min(chunk_bytes_, (longest + kAlign - 1) / kAlign * kAlign);
    const std::int64_t chunks = (longest - 1) / chunk_bytes_ + 1;
    const std::int64_t lanes = std::min<std::int64_t>(chunks, kLanes);
    if (peers < link().size()) staging_ = at::empty({lanes, peers, chunk_bytes_}, at::kByte);
    plan(chunks, reduction_.gathers ? 2 : 1);
  }

 private:
  void post(const Step& step, MpiExchange& exchange) override {
    if (step.phase == 1) {
      const MpiPieces own(reduction_.pieces.size(), own_);
      exchange_chunks(step, exchange, {in(), &reduction_.pieces}, {in(), &own}, chunk_bytes_);
      return;
    }
    const std::int64_t incoming = chunk_of(own_, step.chunk, chunk_bytes_).bytes;
    const int size = link().size();
    for (int i = 1; i < size; ++i) {
      const int to = (link().rank + i) % size;
      const MpiPiece piece =
          chunk_of(reduction_.pieces[static_cast<std::size_t>(to)], step.chunk, chunk_bytes_);
      if (piece.bytes >= 0) exchange.send(to, in() + piece.begin, piece.bytes, tag(step));
    }
    for (int i = 1; i < size; ++i) {
      const int from = (link().rank + size - i) % size;
      if (incoming >= 0) exchange.receive(from, staged(step, from), incoming, tag(step));
    }
  }

  void arrived(const Step& step) override {
    const MpiPiece chunk = chunk_of(own_, step.chunk, chunk_bytes_);
    if (step.phase == 1 || chunk.bytes <= 0) return;
    parts_.clear();
    for (int r = 0; r < link().size(); ++r) {
      parts_.push_back(r == link().rank ? in() + chunk.begin : staged(step, r));
    }
    std::byte* out = bytes_of(reduction_.out) + (chunk.begin - own_.begin);
    reduce_in_order({&out, 1}, parts_, chunk.bytes / reduction_.in.element_size(),
                    reduction_.in.scalar_type(), reduction_.op);
  }

  static std::byte* bytes_of(const at::Tensor& x) { return static_cast<std::byte*>(x.data_ptr()); }
  std::byte* in() const { return bytes_of(reduction_.in); }
  // Where rank `from`'s part of the step's chunk arrives.
  std::byte* staged(const Step& step, int from) const {
    const std::int64_t peers = staging_.size(1);
    const std::int64_t row = step.lane * peers + (from < link().rank ? from : from - 1);
    return bytes_of(staging_) + row * chunk_bytes_;
  }

  MpiReduction reduction_;
  MpiPiece own_;
  std::int64_t chunk_bytes_ = 0;
  at::Tensor staging_;  // [lanes, peers, chunk_bytes]
  std::vector<const std::byte*> parts_;
};

}  // namespace

MpiOperationPtr make_mpi_reduction(const MpiCall& call, MpiReduction reduction) {
  return std::make_shared<Reduction>(call, std::move(reduction));
}

}  // namespace quatrain
