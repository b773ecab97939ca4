// SPDX-License-Identifier: Apache-2.0
#include "quatrain/planner/layer_times.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/cost/local.h"
#include "quatrain/cost/stage_cut.h"
#include "quatrain/planner/collective.h"
#include "quatrain/planner/layer_timer.h"
#include "quatrain/planner/op_time.h"

namespace quatrain {
namespace {

Flops all_passes(const UnitCost& unit) {
  return unit.forward() + unit.backward_input() + unit.backward_weight();
}

// The model with one block, like block `layer`.
ModelSpec one_block(const ModelSpec& model, std::int64_t layer) {
  ModelSpec one = model;
  one.layers = 1;
  one.window = model.layer_window(layer);
  one.window_layers.clear();
  if (!model.experts) return one;
  one.experts->first_dense = model.layer_is_sparse(layer) ? 0 : 1;
  one.experts->sparse_step = 1;
  one.experts->dense_layers.clear();
  return one;
}

// One sequence: a micro-batch is as many times that. Of the rank of cp with most to do.
WorkShape shape_of(const Job& job, const Geometry& g) {
  WorkShape shape;
  shape.context = slowest_split(g, job.seq);
  shape.seq = shape.context.tokens(job.seq);
  shape.whole_seq = job.seq;
  shape.dtype = job.dtype;
  shape.recompute = g.recompute;
  shape.split.degree = g.tp;
  shape.split.sequence_parallel = g.sequence_parallel && g.tp > 1;
  if (job.model.experts) shape.split.experts = ExpertSplit{.ep = g.ep, .etp = g.etp};
  shape.gather_again = g.gather_again;
  return shape;
}

}  // namespace

// Walks of one sequence on one rank of tp, cp, ep and etp.
struct LayerTable::Walked {
  WorkShape shape;
  std::vector<std::vector<UnitCost>> units;  // [kind]: embedding, block, head
  Bytes message;
};

LayerTable::LayerTable(const Job& job) : job_(job) {
  std::vector<std::pair<bool, std::int64_t>> known;
  for (std::int64_t layer = 0; layer < job.model.layers; ++layer) {
    const std::pair kind{job.model.layer_is_sparse(layer), job.model.layer_window(layer)};
    const auto found = std::find(known.begin(), known.end(), kind);
    kinds_.push_back(static_cast<int>(found - known.begin()));
    if (found != known.end()) continue;
    known.push_back(kind);
    models_.push_back(one_block(job.model, layer));
  }
  CHECK(known.size() <= kMostKinds, "{} kinds of blocks", known.size());
  WorkShape shape;
  shape.seq = job.seq;
  std::vector<double> block;
  for (const ModelSpec& model : models_) {
    const std::vector<UnitCost> units = walk(model, shape);
    block.push_back(all_passes(units[1]).value);
    flops_ = all_passes(units.front()).value + all_passes(units.back()).value;
  }
  for (const int kind : kinds_) flops_ += block[static_cast<std::size_t>(kind)];
}

LayerTable::~LayerTable() = default;

// How a layer is run, as one number.
std::int64_t LayerTable::way_of(const Geometry& g) {
  std::int64_t way = 4 * static_cast<std::int64_t>(g.recompute) + (g.sequence_parallel ? 2 : 0) +
                     (g.gather_again ? 1 : 0);
  if (g.cp == 1) return way;
  const ContextSplit context = context_of(g);
  way += 16 * (2 * (context.zigzag ? 1 : 0) + (context.gathers ? 1 : 0));
  return way + 64 * context.heads;
}

const LayerTable::Parameters& LayerTable::parameters(const TensorSplit& split) {
  const ExpertSplit experts = split.expert_split();
  Parameters& list = parameters_[{split.degree, experts.ep, experts.etp}];
  if (!list.empty()) return list;
  for (const ModelSpec& model : models_) list.push_back(trained_parameters(model, split, {}));
  return list;
}

const LayerTable::Walked& LayerTable::walked(const Geometry& g) {
  const Key key{g.tp, g.cp, g.ep, g.etp, way_of(g)};
  std::unique_ptr<Walked>& entry = walks_[key];
  if (entry) return *entry;
  auto walked = std::make_unique<Walked>();
  const WorkShape shape = walked->shape = shape_of(job_, g);
  const Parameters& own = parameters(shape.split);
  const StageLayers layers{0, 0, 3};
  for (std::size_t kind = 0; kind < models_.size(); ++kind) {
    walked->units.push_back(walk(models_[kind], shape, std::span(&layers, 1), own[kind]));
  }
  walked->message = message_bytes(models_.front(), shape);
  return *(entry = std::move(walked));
}

const MicrobatchTimes& LayerTable::at(const Geometry& g) {
  const Key key{g.tp, g.cp, g.ep, g.etp, way_of(g), g.micro_batch};
  if (const auto known = times_.find(key); known != times_.end()) return known->second;
  const Walked& from = walked(g);
  Geometry whole = g;
  whole.recompute = Recompute::kNone;
  const Walked& unrecomputed = walked(whole);
  MicrobatchTimes times;
  for (std::size_t kind = 0; kind < models_.size(); ++kind) {
    const LayerTimer timer(job_, g, models_[kind], from.shape);
    times.block[kind] =
        timer.block(from.units[kind][1], bytes_of(unrecomputed.units[kind][1].stash()));
  }
  const LayerTimer timer(job_, g, models_.front(), from.shape);
  times.embedding = timer.end(from.units.front().front());
  times.head = timer.end(from.units.front().back());
  // Quatrain's head makes its gradients in the forward, chunk by chunk, while logits exist.
  if (job_.cluster.whole_logits == 0) times.head.put_all_into_forward();
  times.table = std::ceil(count(job_.model.vocab) / g.tp) * count(job_.model.hidden);
  times.message_bytes = bytes_of(from.message) * count(g.micro_batch);
  WorkShape shape = from.shape;
  shape.batch = g.micro_batch;
  times.logits = logits(shape);
  return times_.emplace(key, times).first->second;
}

double message_seconds(const Job& job, const MicrobatchTimes& times, const Geometry& g) {
  const int stride = g.dp() * g.cp * g.tp;
  return collective_seconds(job.cluster, CommKind::kSend, {2, stride}, times.message_bytes);
}

// A chunk's, or all where software keeps them.
double LayerTable::logits(const WorkShape& shape) const {
  if (job_.cluster.whole_logits == 0) return bytes_of(logits_bytes(models_.front(), shape));
  const double rows = count(shape.batch * shape.seq);
  return job_.cluster.whole_logits * rows * count(job_.model.vocab) / shape.split.degree;
}

const std::vector<std::int64_t>& LayerTable::cut(int stages) {
  std::vector<std::int64_t>& cut = cuts_[stages];
  if (!cut.empty()) return cut;
  Geometry whole;
  const Walked& from = walked(whole);
  const auto stand_in = [](const UnitCost& unit) {
    OpCost op;
    op.forward = all_passes(unit);
    return UnitCost{unit.name, {op}};
  };
  std::vector<UnitCost> units{stand_in(from.units.front().front())};
  for (const int kind : kinds_) {
    units.push_back(stand_in(from.units[static_cast<std::size_t>(kind)][1]));
  }
  units.push_back(stand_in(from.units.front().back()));
  return cut = balanced_layers(units, stages);
}

}  // namespace quatrain
