// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/context_time.h"

#include <algorithm>
#include <cmath>

#include "quatrain/planner/collective.h"
#include "quatrain/planner/op_time.h"

namespace quatrain {
namespace {

// Bytes read and written for a byte that is sent or received, by nn/context_*.cc in 16 bit.
constexpr double kPacked = 4;   // an exchange: copied at both ends
constexpr double kOrdered = 2;  // a gather: copied from the order of ranks into the sequence's
constexpr double kSummed = 12;  // gradients: made, and added up wide
// A further block reads a part of the outputs, or of queries' gradients, and adds it to a wide sum.
constexpr double kMergedBytes = 12;  // an element
constexpr double kBlockKernels = 6;
// Tensors of the size of what is gathered, or of a block: itself, its gradient, wide sums.
constexpr double kGatheredTensors = 4, kBlockTensors = 6;

class SharedAttention {
 public:
  SharedAttention(const Job& job, const WorkShape& shape, const ModelSpec& model,
                  const AttentionWork& work)
      : job_(job), shape_(shape), model_(model), work_(work) {}

  ContextTimes run(const OpCost& attention) && {
    for (const OpWire& wire : attention.wire) {
      if (wire.axes == AxisSet(Axis::kCp)) add(wire);
    }
    // A block that is run again is timed as its forward: copies in the input half, without it.
    const bool again = shape_.recompute == Recompute::kFull;
    if (again) input_.moved -= forward_.moved;
    const double home = input_.sent - (again ? 2 : 1) * forward_.sent;
    input_.moved += kSummed * home;
    times_.forward = moving_seconds(job_, forward_.moved, 0);
    times_.input = moving_seconds(job_, input_.moved, 0);
    if (places() > 1 && !shape_.context.gathers) {
      merge();
      hide(forward_.ring, work_.forward);
      times_.hidden_input = hide(input_.ring, work_.input + (again ? work_.forward : 0.0));
    }
    return times_;
  }

 private:
  struct Pass {
    double moved = 0;  // bytes of copies
    double sent = 0;   // bytes around the ring
    double ring = 0;   // seconds of it
  };

  int places() const { return shape_.context.places(); }
  int tp() const { return shape_.split.degree; }

  void add(const OpWire& wire) {
    Pass& pass = wire.pass == ActionKind::kForward ? forward_ : input_;
    const double calls = count(wire.calls);
    const double sent = work_.sequences * count(wire.bytes.value) / calls;
    const GroupShape all{shape_.context.degree, tp()}, heads{shape_.context.heads, tp()};
    switch (wire.operation) {
      case CollectiveKind::kSend:
        pass.sent += calls * sent;
        pass.ring +=
            calls * collective_seconds(job_.cluster, CommKind::kSend, slowest_link(), sent);
        times_.working = std::max(times_.working, kBlockTensors * sent);
        return;
      case CollectiveKind::kAllToAll:
        return wait(pass, CommKind::kAllToAll, heads, calls, sent, kPacked);
      case CollectiveKind::kAllGather:
        times_.working = std::max(times_.working, kGatheredTensors * whole(all, sent));
        return wait(pass, CommKind::kAllGather, all, calls, sent, kOrdered);
      case CollectiveKind::kReduceScatter:
        return wait(pass, CommKind::kReduceScatter, all, calls, sent, kSummed);
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kSlice:
        return;
    }
  }

  static double whole(GroupShape group, double sent) {
    return sent * group.size / (group.size - 1);
  }

  void wait(Pass& pass, CommKind kind, GroupShape group, double calls, double sent, double copies) {
    const double bytes = whole(group, sent);
    times_.exposed += calls * collective_seconds(job_.cluster, kind, group, bytes);
    pass.moved += copies * calls * bytes;
  }

  // All places step together: a ring that leaves a domain is as fast as its way out.
  GroupShape slowest_link() const {
    const int stride = tp() * shape_.context.heads;
    const bool inside = inside_domain(job_.cluster, {places(), stride});
    return {2, inside ? stride : std::max(stride, static_cast<int>(job_.cluster.domain))};
  }

  // Other places' blocks that a rank sees anything of: of those within a window, at most two each
  // way of its chunks.
  double blocks_seen() const {
    const double others = places() - 1;
    if (model_.window <= 0) return others;
    const double chunk = count(shape_.whole_seq) / (2 * places());
    return std::min(others, 2 * std::ceil(count(model_.window) / chunk));
  }

  void merge() {
    const double rows = work_.sequences * count(shape_.seq), blocks = blocks_seen();
    const std::int64_t value = model_.latent ? model_.latent->v_head_dim : model_.head_dim;
    const double width = count(model_.heads * value) / tp();
    const double seconds =
        moving_seconds(job_, blocks * rows * width * kMergedBytes, blocks * kBlockKernels);
    times_.forward += seconds;
    times_.input += seconds;
  }

  // A step of the ring takes as long as its message, or its block's attention.
  double hide(double ring, double attention) {
    const double steps = places() - 1, computing = blocks_seen() + 1;
    const double hidden =
        std::min(steps, computing) * std::min(ring / steps, attention / computing);
    times_.hidden += hidden;
    times_.exposed += ring - hidden;
    return hidden;
  }

  const Job& job_;
  const WorkShape& shape_;
  const ModelSpec& model_;
  const AttentionWork& work_;
  ContextTimes times_;
  Pass forward_, input_;
};

}  // namespace

ContextTimes context_times(const Job& job, const WorkShape& shape, const ModelSpec& model,
                           const OpCost& attention, const AttentionWork& work) {
  return SharedAttention(job, shape, model, work).run(attention);
}

}  // namespace quatrain
