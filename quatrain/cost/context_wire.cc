// SPDX-License-Identifier: Apache-2.0
// What attention sends over cp (nn/context_ring.cc, nn/context_gather.cc, nn/head_exchange.cc), and
// the sums that routers of shared sequences make.
#include <algorithm>

#include "quatrain/cost/block_ops.h"

namespace quatrain {
namespace {

// Widths of one token's heads of a rank.
struct TokenWidths {
  std::int64_t q, kv, out;  // q; k and v; the output
};

class ContextWire {
 public:
  ContextWire(const WorkShape& shape, const BlockDims& dims)
      : split_(shape.context), seq_(shape.whole_seq), batch_(shape.batch) {
    const bool latent = dims.latent.has_value();
    const std::int64_t d = latent ? dims.latent->nope + dims.latent->rope : dims.head_dim;
    const std::int64_t dv = latent ? dims.latent->value : dims.head_dim;
    const std::int64_t kv = latent ? dims.heads : dims.kv_heads;
    const std::int64_t kv_here = std::max<std::int64_t>(1, kv / split_.heads);
    all_ = {dims.heads * d, kv * (d + dv), dims.heads * dv};
    here_ = {dims.heads / split_.heads * d, kv_here * (d + dv), dims.heads / split_.heads * dv};
  }

  // Elements of all calls, and how many calls there are.
  struct Sent {
    std::int64_t calls = 0, elements = 0;
  };

  // Keys and values on their way around the ring, or gradients of those on their way home.
  Sent around(bool home) const {
    Sent sent;
    for (int step = home ? 1 : 0; step < split_.places() - (home ? 0 : 1); ++step) {
      const int place = (split_.place() - step + split_.places()) % split_.places();
      sent.calls += 1;
      sent.elements += batch_ * total(split_.of_place(seq_, place)) * here_.kv;
    }
    return sent;
  }
  // Pieces are padded to the longest.
  Sent gathered() const {
    std::int64_t most = 0;
    for (int rank = 0; rank < split_.degree; ++rank) most = std::max(most, tokens(rank));
    return {1, (split_.degree - 1) * most * batch_ * all_.kv};
  }
  Sent to_heads(std::int64_t TokenWidths::*first,
                std::int64_t TokenWidths::*second = nullptr) const {
    const std::int64_t width = here_.*first + (second != nullptr ? here_.*second : 0);
    return {1, (split_.heads - 1) * batch_ * tokens(split_.rank) * width};
  }
  Sent to_tokens(std::int64_t TokenWidths::*first,
                 std::int64_t TokenWidths::*second = nullptr) const {
    const std::int64_t width = here_.*first + (second != nullptr ? here_.*second : 0);
    const std::int64_t others = total(split_.of_place(seq_, split_.place())) - tokens(split_.rank);
    return {1, batch_ * others * width};
  }

 private:
  std::int64_t tokens(int rank) const { return total(split_.of_rank(seq_, rank)); }

  ContextSplit split_;
  std::int64_t seq_, batch_;
  TokenWidths all_{}, here_{};
};

}  // namespace

void context_wire(std::vector<OpCost>& ops, const WorkShape& shape, const BlockDims& dims) {
  using enum ActionKind;
  const ContextSplit& split = shape.context;
  if (split.degree == 1) return;
  const ContextWire wire(shape, dims);
  OpCost& attention = op_named(ops, "attention");
  const auto book = [&](ActionKind pass, CollectiveKind kind, ContextWire::Sent sent) {
    if (sent.calls == 0) return;
    attention.wire.push_back(
        {pass, kind, Axis::kCp, sent.calls, Bytes{sent.elements * size_of(shape.dtype)}});
  };
  const auto keys = [&](ActionKind pass) {
    if (split.gathers) return book(pass, CollectiveKind::kAllGather, wire.gathered());
    book(pass, CollectiveKind::kSend, wire.around(false));
  };
  using W = TokenWidths;
  for (const ActionKind pass : {kForward, kBackwardInput}) {
    if (pass == kBackwardInput && shape.recompute != Recompute::kFull) continue;
    if (split.heads > 1) book(pass, CollectiveKind::kAllToAll, wire.to_heads(&W::q, &W::kv));
    keys(pass);
    if (split.heads > 1) book(pass, CollectiveKind::kAllToAll, wire.to_tokens(&W::out));
  }
  if (split.heads > 1) book(kBackwardInput, CollectiveKind::kAllToAll, wire.to_heads(&W::out));
  keys(kBackwardInput);
  if (split.gathers) {
    book(kBackwardInput, CollectiveKind::kReduceScatter, wire.gathered());
  } else {
    book(kBackwardInput, CollectiveKind::kSend, wire.around(true));
  }
  if (split.heads > 1) {
    book(kBackwardInput, CollectiveKind::kAllToAll, wire.to_tokens(&W::q, &W::kv));
  }
}

void sequence_counts_wire(std::vector<OpCost>& ops, const WorkShape& shape, const BlockDims& dims) {
  using enum ActionKind;
  const std::int64_t ranks = shape.context.degree;
  const std::int64_t counts = shape.batch * dims.mixture->experts;
  const Bytes sent{2 * (ranks - 1) * ((counts + ranks - 1) / ranks) *
                   static_cast<std::int64_t>(sizeof(std::int64_t))};
  OpCost& router = op_named(ops, "router");
  router.wire.push_back({kForward, CollectiveKind::kAllReduce, Axis::kCp, 1, sent});
  if (shape.recompute != Recompute::kFull) return;
  router.wire.push_back({kBackwardInput, CollectiveKind::kAllReduce, Axis::kCp, 1, sent});
}

}  // namespace quatrain
