// SPDX-License-Identifier: Apache-2.0
// One rank's collectives: copies where out is not in, nothing where it is, and every check of
// shapes, dtypes and ranks that a backend with peers makes. send() keeps a copy for the recv() that
// follows it, first in, first out.
#include "quatrain/comm/self/self.h"

#include <fmt/format.h>

#include <array>
#include <deque>
#include <string>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"

namespace quatrain {
namespace {

std::string describe(const at::Tensor& x) {
  if (!x.defined()) return "undefined";
  return fmt::format("{}[{}]", c10::toString(x.scalar_type()), fmt::join(x.sizes(), ", "));
}

class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(std::string_view name) : name_(name) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view backend() const override { return "self"; }
  std::string_view name() const override { return name_; }
  std::span<const int> ranks() const override { return kRankZero; }

  Work all_reduce(at::Tensor x, ReduceOp /*op*/) override {
    begin("all_reduce");
    CHECK(x.defined(), "{} of an undefined tensor", where());
    return {};
  }
  Work all_gather(at::Tensor out, const at::Tensor& in,
                  std::span<const std::int64_t> rows) override {
    begin("all_gather");
    check_rows("in", in, rows);
    return copy(std::move(out), in);
  }
  Work reduce_scatter(at::Tensor out, const at::Tensor& in, std::span<const std::int64_t> rows,
                      ReduceOp /*op*/) override {
    begin("reduce_scatter");
    check_rows("in", in, rows);
    return copy(std::move(out), in);
  }
  Work all_to_all(at::Tensor out, const at::Tensor& in, std::span<const std::int64_t> out_rows,
                  std::span<const std::int64_t> in_rows) override {
    begin("all_to_all");
    check_rows("out", out, out_rows);
    check_rows("in", in, in_rows);
    return copy(std::move(out), in);
  }
  Work broadcast(at::Tensor x, int root) override {
    begin("broadcast");
    check_peer(root);
    CHECK(x.defined(), "{} of an undefined tensor", where());
    return {};
  }
  Work send(const at::Tensor& x, int to) override {
    begin("send");
    check_peer(to);
    CHECK(x.defined(), "{} of an undefined tensor", where());
    sent_.push_back(x.clone());
    return {};
  }
  Work recv(at::Tensor x, int from) override {
    begin("recv");
    check_peer(from);
    // With one rank nobody else can send later: to wait here is to wait for ever.
    if (sent_.empty()) throw CommError(where() + ": nothing was sent, and no other rank can");
    const at::Tensor message = std::move(sent_.front());
    sent_.pop_front();
    return copy(std::move(x), message);
  }
  Work barrier() override {
    begin("barrier");
    return {};
  }

  std::unique_ptr<Communicator> group(std::span<const int> ranks, std::string_view name) override {
    begin("group");
    CHECK(ranks.size() == 1 && ranks[0] == 0, "{}: group \"{}\" of ranks {{{}}} in a world of one",
          where(), name, fmt::join(ranks, ", "));
    return make_self_communicator(name);
  }

 private:
  static constexpr std::array<int, 1> kRankZero = {0};

  void begin(std::string_view operation) {
    operation_ = operation;
    ++sequence_;
  }
  // "self all_gather #3 on dp {0}"
  std::string where() const {
    return fmt::format("self {} #{} on {} {{0}}", operation_, sequence_, name_);
  }
  void check_peer(int peer) const {
    CHECK(peer == 0, "{}: rank {} is not in a group of one", where(), peer);
  }
  void check_rows(std::string_view side, const at::Tensor& x,
                  std::span<const std::int64_t> rows) const {
    CHECK(x.defined() && x.dim() > 0 && rows.size() == 1 && rows[0] == x.size(0),
          "{}: {} rows {{{}}} for {} = {}", where(), side, fmt::join(rows, ", "), side,
          describe(x));
  }
  Work copy(at::Tensor out, const at::Tensor& in) const {
    const bool match = out.defined() && in.defined() && out.sizes() == in.sizes() &&
                       out.scalar_type() == in.scalar_type() && out.device() == in.device();
    CHECK(match, "{}: out = {} but in = {}", where(), describe(out), describe(in));
    if (!out.is_same(in) && out.const_data_ptr() != in.const_data_ptr()) out.copy_(in);
    return {};
  }

  std::string name_;
  std::string operation_;
  std::int64_t sequence_ = 0;
  std::deque<at::Tensor> sent_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator(std::string_view name) {
  return std::make_unique<SelfCommunicator>(name);
}

}  // namespace quatrain
