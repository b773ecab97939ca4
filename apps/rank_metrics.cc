// SPDX-License-Identifier: Apache-2.0
// See rank_metrics.h.
#include "apps/rank_metrics.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <numeric>

namespace quatrain::apps {
namespace {

using Json = nlohmann::ordered_json;

at::Tensor as_tensor(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.accessor<std::uint8_t, 1>().data());
  return bytes;
}

Json own_part(const StepMetrics& metrics, const CommCounts& sent) {
  Json comm = Json::object();
  for (const auto& [group, operations] : sent.groups()) {
    for (int o = 0; o < kNumOperations; ++o) {
      const CommCount count = operations[static_cast<std::size_t>(o)];
      if (count.calls == 0) continue;
      comm[group == "world" ? "control" : group][std::string(name(static_cast<Operation>(o)))] = {
          {"calls", count.calls}, {"bytes", count.bytes.value}};
    }
  }
  return {{"peak", metrics.peak.bytes},
          {"comm", comm},
          {"exposed", metrics.exposed_comm_ms},
          {"bubble", metrics.bubble_ms}};
}

void add_most(Json& most, const Json& comm) {
  for (const auto& [group, operations] : comm.items()) {
    for (const auto& [operation, count] : operations.items()) {
      Json& entry = most[group][operation];
      if (entry.is_null() || count["bytes"] > entry["bytes"]) entry = count;
    }
  }
}

}  // namespace

std::vector<std::string> gather_texts(Communicator& world, const std::string& own) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(own.size()), at::kLong);
  const at::Tensor lengths = at::empty({world.size()}, at::kLong);
  all_gather(world, lengths, length).wait();
  std::vector<std::int64_t> sizes;
  for (std::size_t r = 0; r < ranks; ++r) {
    sizes.push_back(lengths[static_cast<std::int64_t>(r)].item<std::int64_t>());
  }
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const at::Tensor all = at::empty({total}, at::kByte);
  world.all_gather(all, as_tensor(own), sizes).wait();
  const auto* begin = all.accessor<std::uint8_t, 1>().data();
  std::vector<std::string> texts;
  for (const std::int64_t size : sizes) {
    texts.emplace_back(begin, begin + size);
    begin += size;
  }
  return texts;
}

void merge_over_ranks(StepMetrics& metrics, const CommCounts& sent, Communicator& world) {
  metrics.comm = Json::object();
  for (const std::string& text : gather_texts(world, own_part(metrics, sent).dump())) {
    const Json part = Json::parse(text);
    MemoryUse peak;
    part["peak"].get_to(peak.bytes);
    if (peak.total() > metrics.peak.total()) metrics.peak = peak;
    metrics.exposed_comm_ms = std::max(metrics.exposed_comm_ms, part["exposed"].get<double>());
    metrics.bubble_ms = std::max(metrics.bubble_ms, part["bubble"].get<double>());
    add_most(metrics.comm, part["comm"]);
  }
}

void any_rank(std::span<bool> flags, Communicator& world) {
  const at::Tensor most = at::empty({static_cast<std::int64_t>(flags.size())}, at::kInt);
  auto values = most.accessor<int, 1>();
  for (std::size_t i = 0; i < flags.size(); ++i) values[static_cast<std::int64_t>(i)] = flags[i];
  world.all_reduce(most, ReduceOp::kMax).wait();
  for (std::size_t i = 0; i < flags.size(); ++i) {
    flags[i] = values[static_cast<std::int64_t>(i)] != 0;
  }
}

}  // namespace quatrain::apps
