// SPDX-License-Identifier: Apache-2.0
// Checks a call, lays out its pieces in contiguous tensors (the caller's own where they are), and
// starts the operation. Collectives take their tags from their number in the group's order, so
// several may be in flight; messages between two ranks share one tag and keep their order.
#include "quatrain/comm/mpi/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"

namespace quatrain {
namespace {

using Rows = std::span<const std::int64_t>;

// Up to here all_reduce is one round of whole tensors, not two of pieces: a latency is saved.
// Longer ones are slower in one round, also between two ranks, whose bytes are the same.
constexpr std::int64_t kOneRoundBytes = std::int64_t{16} << 10;
constexpr int kTagsInTurn = kMpiMessageTag / MpiOperation::kTags;

std::size_t index(int i) { return static_cast<std::size_t>(i); }

std::int64_t bytes(const at::Tensor& x) { return x.numel() * x.element_size(); }

// Bytes of one index of dim 0.
std::int64_t row_bytes(const at::Tensor& x) {
  std::int64_t row = x.element_size();
  for (std::int64_t dim = 1; dim < x.dim(); ++dim) row *= x.size(dim);
  return row;
}

MpiPieces pieces_of(Rows rows, std::int64_t bytes_per_row) {
  MpiPieces pieces;
  std::int64_t begin = 0;
  for (std::int64_t count : rows) {
    pieces.push_back({.begin = begin, .bytes = count * bytes_per_row});
    begin += count * bytes_per_row;
  }
  return pieces;
}

// Of n pieces the first (count % n) are one element longer.
MpiPieces even_pieces(std::int64_t count, std::int64_t element_bytes, int n) {
  std::vector<std::int64_t> lengths(index(n), count / n);
  for (int i = 0; i < count % n; ++i) ++lengths[index(i)];
  return pieces_of(lengths, element_bytes);
}

// The same piece to or from everybody.
MpiPieces everywhere(const MpiPiece& piece, int n) { return MpiPieces(index(n), piece); }

MpiPieces only(int peer, const MpiPiece& piece, int n) {
  MpiPieces pieces(index(n), MpiPiece{});
  pieces[index(peer)] = piece;
  return pieces;
}

// This rank's own piece, which does not travel. A plain copy: at::copy_ of small pieces costs more
// than the message.
void copy_bytes(const at::Tensor& to, std::int64_t begin, const at::Tensor& from,
                const MpiPiece& piece) {
  std::byte* target = static_cast<std::byte*>(to.data_ptr()) + begin;
  const std::byte* source = static_cast<const std::byte*>(from.const_data_ptr()) + piece.begin;
  if (target != source && piece.bytes > 0) {
    std::memcpy(target, source, static_cast<std::size_t>(piece.bytes));
  }
}

// A contiguous tensor in the place of the caller's, where that one is not.
struct Staged {
  explicit Staged(at::Tensor x) : original(std::move(x)), dense(original.contiguous()) {}
  bool in_place() const { return dense.is_same(original); }

  at::Tensor original;
  at::Tensor dense;
};

class MpiWork final : public Work::State {
 public:
  MpiWork(MpiEngine& engine, MpiOperationPtr operation, std::optional<Staged> result)
      : engine_(engine), operation_(std::move(operation)), result_(std::move(result)) {}
  bool wait_until(Work::Deadline deadline) override {
    if (!engine_.wait_until(*operation_, deadline)) return false;
    if (result_ && !result_->in_place()) result_->original.copy_(result_->dense);
    return true;
  }
  bool done() const override { return operation_->finished(); }
  std::vector<int> absent() const override { return engine_.absent(*operation_); }

 private:
  MpiEngine& engine_;
  MpiOperationPtr operation_;
  std::optional<Staged> result_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MpiEngine& engine, const MpiLink& link)
      : engine_(engine), link_(link), sent_(link.ranks.size()), received_(link.ranks.size()) {}

  int rank() const override { return link_.rank; }
  int size() const override { return link_.size(); }
  std::string_view backend() const override { return "mpi"; }
  std::string_view name() const override { return link_.name; }
  std::span<const int> ranks() const override { return link_.ranks; }

  Work all_reduce(at::Tensor x, ReduceOp op) override {
    const MpiCall call = collective(Operation::kAllReduce);
    check_defined(call, x);
    Staged staged(std::move(x));
    MpiReduction reduction{
        .out = staged.dense, .in = staged.dense, .pieces = {}, .op = op, .gathers = false};
    const std::int64_t whole = bytes(staged.dense);
    if (whole <= kOneRoundBytes) {
      reduction.pieces = everywhere({.begin = 0, .bytes = whole}, size());
    } else {
      reduction.pieces = even_pieces(staged.dense.numel(), staged.dense.element_size(), size());
      reduction.gathers = true;
      const MpiPiece& own = reduction.pieces[index(rank())];
      reduction.out = staged.dense.view(-1).narrow(0, own.begin / staged.dense.element_size(),
                                                   own.bytes / staged.dense.element_size());
    }
    return start(make_mpi_reduction(call, std::move(reduction)), std::move(staged));
  }

  Work all_gather(at::Tensor out, const at::Tensor& in, Rows rows) override {
    const MpiCall call = collective(Operation::kAllGather);
    check_rows(call, "out", out, rows);
    check_like(call, in, rows[index(rank())], out);
    Staged staged(std::move(out));
    const at::Tensor dense_in = in.contiguous();
    MpiPieces pieces = pieces_of(rows, row_bytes(staged.dense));
    const MpiPiece& mine = pieces[index(rank())];
    copy_bytes(staged.dense, mine.begin, dense_in, {.begin = 0, .bytes = mine.bytes});
    MpiPieces own = everywhere({.begin = 0, .bytes = mine.bytes}, size());
    return start(make_mpi_transfer(call, {.out = staged.dense,
                                          .out_pieces = std::move(pieces),
                                          .in = dense_in,
                                          .in_pieces = std::move(own)}),
                 std::move(staged));
  }

  Work reduce_scatter(at::Tensor out, const at::Tensor& in, Rows rows, ReduceOp op) override {
    const MpiCall call = collective(Operation::kReduceScatter);
    check_rows(call, "in", in, rows);
    check_like(call, out, rows[index(rank())], in);
    Staged staged(std::move(out));
    MpiPieces pieces = pieces_of(rows, row_bytes(in));
    return start(make_mpi_reduction(call, {.out = staged.dense,
                                           .in = in.contiguous(),
                                           .pieces = std::move(pieces),
                                           .op = op,
                                           .gathers = false}),
                 std::move(staged));
  }

  Work all_to_all(at::Tensor out, const at::Tensor& in, Rows out_rows, Rows in_rows) override {
    const MpiCall call = collective(Operation::kAllToAll);
    check_rows(call, "out", out, out_rows);
    check_rows(call, "in", in, in_rows);
    check_like(call, out, out.size(0), in);
    const std::int64_t kept = in_rows[index(rank())];
    CHECK(kept == out_rows[index(rank())], "{}: a rank sends itself {} rows and expects {}",
          where(call), kept, out_rows[index(rank())]);
    Staged staged(std::move(out));
    at::Tensor dense_in = in.contiguous();
    MpiPieces out_pieces = pieces_of(out_rows, row_bytes(in));
    MpiPieces in_pieces = pieces_of(in_rows, row_bytes(in));
    copy_bytes(staged.dense, out_pieces[index(rank())].begin, dense_in, in_pieces[index(rank())]);
    return start(make_mpi_transfer(call, {.out = staged.dense,
                                          .out_pieces = std::move(out_pieces),
                                          .in = dense_in,
                                          .in_pieces = std::move(in_pieces)}),
                 std::move(staged));
  }

  Work broadcast(at::Tensor x, int root) override {
    const MpiCall call = collective(Operation::kBroadcast);
    check_defined(call, x);
    check_peer(call, root);
    Staged staged(std::move(x));
    const MpiPiece whole{.begin = 0, .bytes = bytes(staged.dense)};
    MpiPieces from_root = only(root, whole, size());
    MpiPieces to_all = everywhere(root == rank() ? whole : MpiPiece{}, size());
    if (root == rank()) from_root = everywhere({}, size());
    return start(make_mpi_transfer(call, {.out = staged.dense,
                                          .out_pieces = std::move(from_root),
                                          .in = staged.dense,
                                          .in_pieces = std::move(to_all)}),
                 std::move(staged));
  }

  Work send(const at::Tensor& x, int to) override {
    const MpiCall call = message(Operation::kSend, sent_, to);
    check_defined(call, x);
    const at::Tensor dense = x.contiguous();
    return start(
        make_mpi_transfer(call, {.out = {},
                                 .out_pieces = everywhere({}, size()),
                                 .in = dense,
                                 .in_pieces = only(to, {.begin = 0, .bytes = bytes(x)}, size()),
                                 .chunked = false}));
  }

  Work recv(at::Tensor x, int from) override {
    const MpiCall call = message(Operation::kRecv, received_, from);
    check_defined(call, x);
    Staged staged(std::move(x));
    const MpiPiece whole{.begin = 0, .bytes = bytes(staged.dense)};
    return start(make_mpi_transfer(call, {.out = staged.dense,
                                          .out_pieces = only(from, whole, size()),
                                          .in = {},
                                          .in_pieces = everywhere({}, size()),
                                          .chunked = false}),
                 std::move(staged));
  }

  Work barrier() override {
    const MpiCall call = collective(Operation::kBarrier);
    const MpiPieces empty = everywhere({.begin = 0, .bytes = 0}, size());
    return start(
        make_mpi_transfer(call, {.out = {}, .out_pieces = empty, .in = {}, .in_pieces = empty}));
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks, std::string_view name) override;

 private:
  MpiCall collective(Operation operation) {
    const std::int64_t sequence = ++collectives_;
    const int tag = static_cast<int>(sequence % kTagsInTurn) * MpiOperation::kTags;
    return {.link = &link_, .operation = operation, .sequence = sequence, .tag = tag};
  }
  MpiCall message(Operation operation, std::vector<std::int64_t>& counts, int peer) {
    MpiCall call{.link = &link_, .operation = operation, .sequence = 0, .tag = kMpiMessageTag};
    check_peer(call, peer);
    call.sequence = ++counts[index(peer)];
    return call;
  }
  // Why a reference: by value, `result` could be moved from before the operation is made of it.
  Work start(MpiOperationPtr operation, Staged&& result) {
    engine_.start(operation);
    return Work(std::make_unique<MpiWork>(engine_, std::move(operation), std::move(result)));
  }
  Work start(MpiOperationPtr operation) {
    engine_.start(operation);
    return Work(std::make_unique<MpiWork>(engine_, std::move(operation), std::nullopt));
  }

  std::string where(const MpiCall& call) const {
    return quatrain::where(*this, call.operation, call.sequence);
  }
  void check_peer(const MpiCall& call, int peer) const {
    CHECK(peer >= 0 && peer < size(), "{}: rank {} is not in a group of {}", where(call), peer,
          size());
  }
  void check_defined(const MpiCall& call, const at::Tensor& x) const {
    CHECK(x.defined() && x.is_cpu(), "{} of {}: not a tensor in this host's memory", where(call),
          describe(x));
  }
  void check_rows(const MpiCall& call, std::string_view side, const at::Tensor& x,
                  Rows rows) const {
    check_defined(call, x);
    const bool match = x.dim() > 0 && rows.size() == link_.ranks.size() &&
                       std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) == x.size(0);
    CHECK(match, "{}: {} rows {{{}}} for {} = {}", where(call), side, fmt::join(rows, ", "), side,
          describe(x));
  }
  // x has `rows` rows of whole's dtype and row shape.
  void check_like(const MpiCall& call, const at::Tensor& x, std::int64_t rows,
                  const at::Tensor& whole) const {
    check_defined(call, x);
    const bool match = x.dim() == whole.dim() && x.size(0) == rows &&
                       x.scalar_type() == whole.scalar_type() &&
                       x.sizes().slice(1) == whole.sizes().slice(1);
    CHECK(match, "{}: {} rows of {} expected, got {}", where(call), rows, describe(whole),
          describe(x));
  }

  MpiEngine& engine_;
  const MpiLink& link_;
  std::int64_t collectives_ = 0;
  std::int64_t groups_ = 0;
  std::vector<std::int64_t> sent_;      // messages, by receiver
  std::vector<std::int64_t> received_;  // by sender
};

// MPI's own call waits inside MPI, where nothing else moves and no interrupt is seen: so operations
// end first, and the members meet.
std::unique_ptr<Communicator> MpiCommunicator::group(std::span<const int> ranks,
                                                     std::string_view name) {
  const MpiCall call{
      .link = &link_, .operation = Operation::kGroup, .sequence = ++groups_, .tag = kMpiMeetingTag};
  const auto self = std::find(ranks.begin(), ranks.end(), rank());
  CHECK(self != ranks.end(), "group \"{}\" of ranks {{{}}} is made by rank {}", name,
        fmt::join(ranks, ", "), rank());
  for (int r : ranks) check_peer(call, r);
  engine_.drain();
  mpi_meeting(engine_, call, ranks);

  auto link = std::make_unique<MpiLink>();
  link->name = name;
  link->rank = static_cast<int>(self - ranks.begin());
  for (int r : ranks) link->ranks.push_back(link_.ranks[index(r)]);
  {
    const std::lock_guard lock(engine_.mutex());
    link->comm = make_group_comm(link_.comm, ranks, kMpiMeetingTag);
  }
  return std::make_unique<MpiCommunicator>(engine_, engine_.keep(std::move(link)));
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MpiEngine& engine, const MpiLink& link) {
  return std::make_unique<MpiCommunicator>(engine, link);
}

void mpi_meeting(MpiEngine& engine, const MpiCall& call, std::span<const int> ranks) {
  MpiPieces pieces(call.link->ranks.size(), MpiPiece{});
  for (int r : ranks) pieces[index(r)] = {.begin = 0, .bytes = 0};
  const MpiOperationPtr meeting = make_mpi_transfer(
      call, {.out = {}, .out_pieces = pieces, .in = {}, .in_pieces = pieces, .chunked = false});
  engine.start(meeting);
  engine.wait_until(*meeting, Work::kNever);
}

}  // namespace quatrain
