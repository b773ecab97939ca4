// SPDX-License-Identifier: Apache-2.0
// The books of communication.
#include "quatrain/comm/counting.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "quatrain/mesh/wire.h"

namespace quatrain {
namespace {

// Elements of one row.
std::int64_t row_numel(const at::Tensor& x) {
  const auto sizes = x.sizes();
  return std::accumulate(sizes.begin() + 1, sizes.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t elements_sent(const Call& call, int rank, int n) {
  const at::Tensor& x = call.tensor();
  switch (call.operation) {
    case Operation::kAllReduce:
      return all_reduce_wire(n, x.numel());
    case Operation::kAllGather:
    case Operation::kReduceScatter:
      return gather_wire(n, *std::max_element(call.rows.begin(), call.rows.end()) * row_numel(x));
    case Operation::kAllToAll: {
      const auto all = std::accumulate(call.rows.begin(), call.rows.end(), std::int64_t{0});
      return (all - call.rows[static_cast<std::size_t>(rank)]) * row_numel(x);
    }
    case Operation::kBroadcast:
      return gather_wire(n, (x.numel() + n - 1) / n);
    case Operation::kSend:
      return x.numel();
    case Operation::kRecv:
    case Operation::kBarrier:
    case Operation::kGroup:
      return 0;
  }
  return 0;
}

// Lanes of one pipeline ("pp:0>1:F", "pp:tied") are counted as one group, "pp".
std::string_view family(std::string_view group) { return group.substr(0, group.find(':')); }

class Counting final : public Decorator {
 public:
  Counting(std::unique_ptr<Communicator> inner, CommCounts& counts)
      : Decorator(std::move(inner)), counts_(counts), entry_(counts.entry(family(name()))) {}

 private:
  // Why after: a call that is refused has sent nothing, and its arguments may be anything.
  Work run(const Call& call) override {
    Work work = forward(call);
    entry_[static_cast<std::size_t>(call.operation)] += {1, bytes_sent(call, rank(), size())};
    return work;
  }
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) override {
    return make_counting(std::move(group), counts_);
  }

  CommCounts& counts_;
  CommCounts::ByOperation& entry_;
};

CommCount sum(const CommCounts::ByOperation& entry) {
  CommCount result;
  for (const CommCount& count : entry) result += count;
  return result;
}

}  // namespace

CommCount& CommCount::operator+=(CommCount other) {
  calls += other.calls;
  bytes += other.bytes;
  return *this;
}

CommCount& CommCount::operator-=(CommCount other) {
  calls -= other.calls;
  bytes -= other.bytes;
  return *this;
}

CommCount CommCounts::of(std::string_view group, Operation operation) const {
  const auto at = groups_.find(group);
  return at == groups_.end() ? CommCount() : at->second[static_cast<std::size_t>(operation)];
}

CommCount CommCounts::total(std::string_view group) const {
  const auto at = groups_.find(group);
  return at == groups_.end() ? CommCount() : sum(at->second);
}

CommCount CommCounts::total() const {
  CommCount result;
  for (const auto& [group, entry] : groups_) result += sum(entry);
  return result;
}

CommCounts CommCounts::since(const CommCounts& before) const {
  CommCounts result = *this;
  for (const auto& [group, entry] : before.groups_) {
    ByOperation& mine = result.entry(group);
    for (std::size_t i = 0; i < entry.size(); ++i) mine[i] -= entry[i];
  }
  return result;
}

void CommCounts::reset() {
  for (auto& [group, entry] : groups_) entry.fill({});
}

std::string CommCounts::to_string() const {
  std::string text;
  for (const auto& [group, entry] : groups_) {
    for (std::size_t i = 0; i < entry.size(); ++i) {
      if (entry[i].calls == 0) continue;
      text += fmt::format("{} {}: {} calls, {} B\n", group, name(static_cast<Operation>(i)),
                          entry[i].calls, entry[i].bytes.value);
    }
  }
  return text;
}

CommCounts::ByOperation& CommCounts::entry(std::string_view group) {
  const auto at = groups_.find(group);
  return at != groups_.end() ? at->second : groups_[std::string(group)];
}

bool operator==(const CommCounts& a, const CommCounts& b) {
  const CommCounts difference = a.since(b);
  return std::all_of(difference.groups_.begin(), difference.groups_.end(),
                     [](const auto& group) { return group.second == CommCounts::ByOperation(); });
}

Bytes bytes_sent(const Call& call, int rank, int size) {
  if (call.operation == Operation::kBarrier) return {};
  const auto element_size = static_cast<std::int64_t>(call.tensor().element_size());
  return Bytes{elements_sent(call, rank, size) * element_size};
}

std::unique_ptr<Communicator> make_counting(std::unique_ptr<Communicator> inner,
                                            CommCounts& counts) {
  return std::make_unique<Counting>(std::move(inner), counts);
}

}  // namespace quatrain
