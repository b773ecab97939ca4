// SPDX-License-Identifier: Apache-2.0
// Faults of a group of data or tensor ranks may run an operation to its end where they stand: all
// of the group do the same, so nothing waits for what comes later. Stages are at different places.
#include "quatrain/verify/planted_fault.h"
#include "quatrain/engine/step_numbers.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/spec/parameters.h"
#include "quatrain/spec/stages.h"

namespace quatrain {
namespace {

class Planted final : public Decorator {
 public:
  Planted(std::unique_ptr<Communicator> inner, PlantedFault& fault)
      : Decorator(std::move(inner)), fault_(fault) {}

 private:
  Work run(const Call& call) override {
    return fault_.run(call, inner(), [this](const Call& c) { return forward(c); });
  }
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) override {
    return std::make_unique<Planted>(std::move(group), fault_);
  }
  PlantedFault& fault_;
};

bool is_sum(const Call& call) {
  const bool reduces =
      call.operation == Operation::kAllReduce || call.operation == Operation::kReduceScatter;
  return reduces && call.op == ReduceOp::kSum;
}

// The part of `flat`, contiguous, that lies in the memory of `x`; undefined when there is none.
at::Tensor shared_part(const at::Tensor& flat, const at::Tensor& x) {
  if (!flat.is_alias_of(x) || flat.scalar_type() != x.scalar_type()) return {};
  const std::int64_t begin = std::max(flat.storage_offset(), x.storage_offset());
  const std::int64_t end =
      std::min(flat.storage_offset() + flat.numel(), x.storage_offset() + x.numel());
  return begin < end ? flat.narrow(0, begin - flat.storage_offset(), end - begin) : at::Tensor();
}

// Where in `packed` the values of `flat` lie, a copy among others; undefined when nowhere.
at::Tensor packed_part(const at::Tensor& flat, const at::Tensor& packed) {
  if (packed.dim() != 1 || packed.scalar_type() != flat.scalar_type()) return {};
  const std::int64_t last = packed.numel() - flat.numel();
  if (last < 0 || !flat.any().item<bool>()) return {};
  const at::Tensor candidates = packed.narrow(0, 0, last + 1).eq(flat[0]).nonzero();
  for (std::int64_t i = 0; i < candidates.size(0); ++i) {
    at::Tensor part = packed.narrow(0, candidates[i].item<std::int64_t>(), flat.numel());
    if (at::equal(part, flat)) return part;
  }
  return {};
}

class Then final : public Work::State {
 public:
  Then(Work work, std::function<void()> after) : work_(std::move(work)), after_(std::move(after)) {}
  bool wait_until(Work::Deadline deadline) override {
    if (!work_.wait_until(deadline)) return false;
    after_();
    return true;
  }
  bool done() const override { return work_.done(); }
  std::vector<int> absent() const override { return work_.absent(); }

 private:
  Work work_;
  std::function<void()> after_;
};

// On a rank of another stage: null.
const Param* find_param(const Model& model, const std::string& name) {
  for (const auto& unit : model.units()) {
    for (const Param& param : unit->params()) {
      if (param.info.name == name) return &param;
    }
  }
  return nullptr;
}

// Over all ranks, in the order of their stages.
std::vector<std::string> unit_names(const RankJob& job) {
  const ModelSpec& spec = job.model.spec();
  const std::vector<StageLayers> all = stage_layers(spec.layers, job.plan.stage_begin);
  const std::vector<int>& placed = job.pipeline.rank_of_stage();
  std::vector<std::string> names;
  for (int rank = 0; rank < job.mesh.degree(Axis::kPp); ++rank) {
    for (const UnitSpec& unit : unit_specs(spec, {}, {}, stages_of_rank(all, placed, rank))) {
      if (std::find(names.begin(), names.end(), unit.name) == names.end()) {
        names.push_back(unit.name);
      }
    }
  }
  return names;
}

// Not all of it: scores under RoPE see differences of positions alone.
class ShiftedLoader final : public DataLoader {
 public:
  explicit ShiftedLoader(std::unique_ptr<DataLoader> inner) : inner_(std::move(inner)) {}
  std::int64_t num_microbatches() const override { return inner_->num_microbatches(); }
  const Batch& microbatch(std::int64_t step, int index) override {
    batch_ = inner_->microbatch(step, index);
    const std::int64_t seq = batch_.positions_BT.size(1);
    batch_.positions_BT = batch_.positions_BT.clone();
    at::Tensor later = batch_.positions_BT.narrow(1, seq / 2, seq - seq / 2);
    later.copy_(later.add(1).clamp_max(seq - 1));
    return batch_;
  }
  std::int64_t trained_tokens(std::int64_t step) override { return inner_->trained_tokens(step); }
  std::vector<std::int64_t> cursor(std::int64_t step) const override {
    return inner_->cursor(step);
  }

 private:
  std::unique_ptr<DataLoader> inner_;
  Batch batch_;
};

}  // namespace

std::unique_ptr<Communicator> PlantedFault::wrap(std::unique_ptr<Communicator> world) {
  return std::make_unique<Planted>(std::move(world), *this);
}

at::Tensor PlantedFault::of_shard(bool grad) {
  for (const UnitShard& shard : job().units.shards()) {
    if (grad && !shard.grad.defined()) continue;
    for (const ShardPart& part : parts(shard)) {
      if (part.param->info.name != arguments_.name) continue;
      if (!grad) return shard.value.narrow(0, part.value_begin, part.numel);
      if (part.param->info.trainable) return shard.grad.narrow(0, part.grad_begin, part.numel);
    }
  }
  return {};
}
at::Tensor PlantedFault::shard_grad() { return of_shard(true); }
at::Tensor PlantedFault::shard_value() { return of_shard(false); }

std::vector<at::Tensor> PlantedFault::grads() {
  std::vector<at::Tensor> flat;
  const Param* param = find_param(job().model, arguments_.name);
  if (param != nullptr && param->grad.defined()) flat.push_back(param->grad.view({-1}));
  if (at::Tensor own = shard_grad(); own.defined()) flat.push_back(std::move(own));
  return flat;
}

Work PlantedFault::then(Work work, std::function<void()> after) {
  return Work(std::make_unique<Then>(std::move(work), std::move(after)));
}

void ScaledGradient::on_gradients() {
  at::Tensor grad = shard_grad();
  if (!grad.defined()) return;
  met();
  grad.mul_(arguments().number);
}

Work ChangedSum::run(const Call& call, Communicator& group, const Forward& forward) {
  if (!has_job() || !is_sum(call)) return forward(call);
  for (const at::Tensor& grad : grads()) {
    at::Tensor sum = shared_part(grad, call.out);
    if (!sum.defined()) sum = packed_part(grad, call.out);
    if (!sum.defined()) continue;
    if (group.size() > 1) met();
    const at::Tensor own = sum.clone();
    return then(forward(call), [this, sum, own, ranks = group.size()] { change(sum, own, ranks); });
  }
  return forward(call);
}

void DroppedSum::change(at::Tensor sum, const at::Tensor& own, int) { sum.copy_(own); }
void DoubledSum::change(at::Tensor sum, const at::Tensor&, int ranks) { sum.mul_(ranks); }

std::unique_ptr<Communicator> SwappedShards::wrap(std::unique_ptr<Communicator> world) {
  std::unique_ptr<Communicator> wrapped = PlantedFault::wrap(std::move(world));
  world_ = wrapped.get();
  return wrapped;
}

// Along the first axis on which the ranks 0 and 1 hold different parts of one size, or neither
// holds anything; this rank itself where it has no partner. The same decision on every rank.
int SwappedShards::partner() {
  const ScatteredTensors own = owned_grads(job().units, job().mesh);
  const auto found = own.find(arguments().name);
  at::Tensor place = at::zeros({1, 2}, at::kLong);  // first element, elements
  if (found != own.end()) {
    const Piece& piece = found->second.pieces.front();
    const auto& shape = found->second.shape;
    std::int64_t first = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) first = first * shape[d] + piece.box.begin[d];
    place[0][0] = first;
    place[0][1] = piece.values.numel();
  }
  at::Tensor places = at::zeros({world_->size(), 2}, at::kLong);
  all_gather(*world_, places, place).wait();
  const auto at_rank = places.accessor<std::int64_t, 2>();
  const Mesh& mesh = job().mesh;
  for (auto axis = mesh.order().rbegin(); axis != mesh.order().rend(); ++axis) {
    if (mesh.degree(*axis) == 1) continue;
    bool fits = true;
    bool some = false;
    for (int rank = 0; fits && rank < world_->size(); ++rank) {
      const std::vector<int> line = mesh.with_rank(rank).group(*axis);
      const auto a = at_rank[line[0]];
      const auto b = at_rank[line[1]];
      fits = a[1] == b[1] && (a[1] == 0 || a[0] != b[0]);
      some = some || a[1] > 0;
    }
    if (!fits || !some) continue;
    const int at = mesh.coord(*axis);
    return at < 2 ? mesh.group(*axis)[static_cast<std::size_t>(1 - at)] : mesh.rank();
  }
  throw ConfigError(fmt::format(
      "--inject swap_shards={}: no two ranks hold different parts of it of one size; choose a "
      "parameter whose rows divide evenly",
      arguments().name));
}

void SwappedShards::on_gradients() {
  const int peer = partner();
  if (peer == world_->rank() || !shard_grad().defined()) return;
  met();
  const at::Tensor grad = shard_grad();
  const at::Tensor sent = grad.clone();
  const at::Tensor theirs = at::empty_like(grad);
  if (world_->rank() < peer) {
    world_->send(sent, peer).wait();
    world_->recv(theirs, peer).wait();
  } else {
    world_->recv(theirs, peer).wait();
    world_->send(sent, peer).wait();
  }
  grad.copy_(theirs);
}

void RepeatedValue::begin_step() {
  at::Tensor value = shard_value();
  const Mesh& mesh = arguments().mesh;
  const int ranks = mesh.degree(axis_of(mesh, arguments().axis));
  if (!value.defined() || ranks == 1) return;
  met();
  kept_ = value.clone();
  value.mul_(ranks);
}
void RepeatedValue::on_gradients() {
  if (kept_.defined()) shard_value().copy_(kept_);
}

void StaleGather::built(RankJob& job) {
  PlantedFault::built(job);
  const std::vector<std::string> names = unit_names(job);
  if (std::find(names.begin(), names.end(), arguments().name) != names.end()) return;
  throw ConfigError(fmt::format("--inject stale_gather={}: no such unit; there are: {}",
                                arguments().name, fmt::join(names, ", ")));
}

Work StaleGather::run(const Call& call, Communicator&, const Forward& forward) {
  if (!has_job() || call.operation != Operation::kAllGather) return forward(call);
  const auto shards = job().units.shards();
  const auto shard = std::find_if(shards.begin(), shards.end(), [&](const UnitShard& s) {
    return s.unit->name() == arguments().name && call.in.is_alias_of(s.value);
  });
  if (shard == shards.end()) return forward(call);
  if (step_ < 2) {
    forward(call).wait();
    first_ = call.out.clone();
    return {};
  }
  met();
  const at::Tensor own = call.in.clone();  // which may lie in `out`
  at::Tensor out = call.out;
  out.copy_(first_);
  out.narrow(0, shard->begin, own.numel()).copy_(own);
  return {};
}

Work MissingGather::run(const Call& call, Communicator& group, const Forward& forward) {
  const bool counts = call.operation == Operation::kAllGather && group.name() == arguments().name;
  if (!counts || ++calls_ != static_cast<int>(arguments().number)) return forward(call);
  met();
  const at::Tensor own = call.in.clone();
  at::Tensor out = call.out;
  const auto rank = static_cast<std::size_t>(group.rank());
  const std::int64_t begin =
      std::accumulate(call.rows.begin(), call.rows.begin() + rank, std::int64_t{0});
  out.zero_();
  out.narrow(0, begin, call.rows[rank]).copy_(own);
  return {};
}

// Squares are summed by parameter, of a stage's ranks alone and then, with what layers saw behind
// them, of all stages.
Work OwnNorm::run(const Call& call, Communicator& group, const Forward& forward) {
  if (!in_norm_ || !is_sum(call) || group.size() == 1) return forward(call);
  const StepNumbers numbers(StepNumbers::size_of(job().model.spec()));
  const auto count = static_cast<std::int64_t>(parameters(job().model.spec()).size());
  const std::int64_t numel = call.out.numel();
  if (call.out.dim() != 1 || (numel != count && numel != numbers.num_sums())) return forward(call);
  met();
  const at::Tensor squares = call.out.narrow(0, 0, count);
  const at::Tensor own = squares.clone();
  return then(forward(call), [squares, own] { squares.copy_(own); });
}

// Token counts are the only integers that a step sums.
Work OwnDivisor::run(const Call& call, Communicator& group, const Forward& forward) {
  const bool counts = is_sum(call) && call.out.scalar_type() == at::kLong && group.size() > 1;
  if (!counts) return forward(call);
  met();
  return {};
}

std::unique_ptr<DataLoader> ShiftedPositions::wrap(std::unique_ptr<DataLoader> data) {
  const Axis axis = axis_of(arguments().mesh, arguments().axis);
  if (arguments().mesh.coord(axis) != 1) return data;
  met();
  return std::make_unique<ShiftedLoader>(std::move(data));
}

void SeedByRank::change(RankJobOptions& options) {
  const Axis axis = axis_of(arguments().mesh, arguments().axis);
  if (arguments().mesh.degree(axis) > 1) met();
  options.executor.seed += static_cast<std::uint64_t>(arguments().mesh.coord(axis));
}

Axis axis_of(const Mesh& mesh, const std::string& text) {
  const auto found = std::find_if(mesh.order().begin(), mesh.order().end(),
                                  [&](Axis axis) { return name(axis) == text; });
  CHECK(found != mesh.order().end(), "no axis \"{}\"", text);
  return *found;
}

}  // namespace quatrain
