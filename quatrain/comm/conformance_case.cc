// SPDX-License-Identifier: Apache-2.0
// Every rank computes what all ranks bring, and from it what must come out here.
#include "quatrain/comm/conformance_case.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <fmt/format.h>

#include <array>
#include <numeric>
#include <utility>

#include "quatrain/base/check.h"

namespace quatrain {
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr std::array kDtypes = {at::kDouble, at::kFloat, at::kBFloat16,
                                at::kLong,   at::kInt,   at::kByte};
constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};
constexpr std::array kOperations = {
    Operation::kAllReduce, Operation::kAllGather, Operation::kReduceScatter, Operation::kAllToAll,
    Operation::kBroadcast, Operation::kSend,      Operation::kBarrier};

template <class Array>
auto one_of(Draws& draws, const Array& values) {
  return values[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(values.size())))];
}

std::size_t at_index(int i) { return static_cast<std::size_t>(i); }

std::int64_t sum_of(const Sizes& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

Sizes sizes(std::int64_t rows, const Sizes& tail) {
  Sizes all = {rows};
  all.insert(all.end(), tail.begin(), tail.end());
  return all;
}

// What rank `rank` brings: real numbers of many magnitudes, so that sums depend on their order.
at::Tensor numbers(const ConformanceCase& c, int rank, const Sizes& shape) {
  at::Tensor x = at::empty(shape, at::kDouble);
  const RandomStream stream(c.numbers, static_cast<std::uint64_t>(rank));
  const std::span<double> values(x.mutable_data_ptr<double>(), static_cast<std::size_t>(x.numel()));
  stream.fill_normal(0, values);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= i % 3 == 0 ? 100.0 : 1.0;
  return at::isFloatingType(c.dtype) ? x.to(c.dtype) : x.to(at::kLong).to(c.dtype);
}

at::Tensor reduced(const ConformanceCase& c, const std::vector<at::Tensor>& xs) {
  const at::ScalarType wide = c.dtype == at::kBFloat16 ? at::kFloat : c.dtype;
  at::Tensor result = xs[0].to(wide);
  for (std::size_t r = 1; r < xs.size(); ++r) {
    const at::Tensor x = xs[r].to(wide);
    switch (c.op) {
      case ReduceOp::kSum:
        result = result.add(x);
        break;
      case ReduceOp::kMax:
        result = at::maximum(result, x);
        break;
      case ReduceOp::kMin:
        result = at::minimum(result, x);
        break;
    }
  }
  return result.to(c.dtype);
}

// The same numbers, laid out as the case says.
at::Tensor laid_out(const ConformanceCase& c, const at::Tensor& x) {
  if (c.layout == 0) return x.clone();
  if (c.layout == 1) return x.transpose(0, -1).contiguous().transpose(0, -1);
  Sizes wider = x.sizes().vec();
  wider.back() *= 2;
  at::Tensor gaps = at::empty(wider, x.options()).slice(-1, 0, wider.back(), 2);
  gaps.copy_(x);
  return gaps;
}

at::Tensor blank(const ConformanceCase& c, const Sizes& shape) {
  return laid_out(c, at::empty(shape, c.dtype).fill_(77));
}

// Builds one rank's side of a case.
class Starter {
 public:
  Starter(Communicator& comm, const ConformanceCase& c)
      : comm_(comm), case_(c), me_(comm.rank()), n_(comm.size()) {}

  ConformanceWork all_reduce() {
    ConformanceWork w = work();
    std::vector<at::Tensor> xs;
    for (int r = 0; r < n_; ++r) xs.push_back(numbers(case_, r, whole()));
    w.out = laid_out(case_, xs[at_index(me_)]);
    w.expected = reduced(case_, xs);
    w.work = comm_.all_reduce(w.out, case_.op);
    return w;
  }

  ConformanceWork all_gather() {
    ConformanceWork w = work();
    std::vector<at::Tensor> pieces;
    for (int r = 0; r < n_; ++r) pieces.push_back(numbers(case_, r, piece(r)));
    w.expected = at::cat(pieces);
    w.out = blank(case_, whole());
    if (case_.in_place) {
      const at::Tensor own = own_rows(w.out);
      own.copy_(pieces[at_index(me_)]);
      w.work = comm_.all_gather(w.out, own, case_.rows);
    } else {
      keep(w, pieces[at_index(me_)]);
      w.work = comm_.all_gather(w.out, w.in, case_.rows);
    }
    return w;
  }

  ConformanceWork reduce_scatter() {
    ConformanceWork w = work();
    std::vector<at::Tensor> xs;
    for (int r = 0; r < n_; ++r) xs.push_back(numbers(case_, r, whole()));
    w.expected = own_rows(reduced(case_, xs));
    if (case_.in_place) {
      const at::Tensor in = laid_out(case_, xs[at_index(me_)]);
      w.out = own_rows(in);
      w.work = comm_.reduce_scatter(w.out, in, case_.rows, case_.op);
    } else {
      w.out = blank(case_, piece(me_));
      keep(w, xs[at_index(me_)]);
      w.work = comm_.reduce_scatter(w.out, w.in, case_.rows, case_.op);
    }
    return w;
  }

  ConformanceWork all_to_all() {
    ConformanceWork w = work();
    std::vector<at::Tensor> arrivals;
    Sizes in_rows;
    Sizes out_rows;
    for (int r = 0; r < n_; ++r) {
      const Sizes sent = rows_from(r);
      const auto before = std::accumulate(sent.begin(), sent.begin() + me_, std::int64_t{0});
      const at::Tensor all = numbers(case_, r, sizes(sum_of(sent), case_.tail));
      arrivals.push_back(all.narrow(0, before, sent[at_index(me_)]));
      out_rows.push_back(sent[at_index(me_)]);
      if (r == me_) keep(w, all);
    }
    in_rows = rows_from(me_);
    w.expected = at::cat(arrivals);
    w.out = blank(case_, sizes(sum_of(out_rows), case_.tail));
    w.work = comm_.all_to_all(w.out, w.in, out_rows, in_rows);
    return w;
  }

  ConformanceWork broadcast() {
    ConformanceWork w = work();
    w.expected = numbers(case_, case_.root, whole());
    w.out = me_ == case_.root ? laid_out(case_, w.expected) : blank(case_, whole());
    w.work = comm_.broadcast(w.out, case_.root);
    return w;
  }

  ConformanceWork send() {
    ConformanceWork w = work();
    keep(w, numbers(case_, case_.root, whole()));
    w.work = comm_.send(w.in, case_.to);
    return w;
  }

  ConformanceWork recv() {
    ConformanceWork w = work();
    w.expected = numbers(case_, case_.root, whole());
    w.out = blank(case_, whole());
    w.work = comm_.recv(w.out, case_.root);
    return w;
  }

  ConformanceWork barrier() {
    ConformanceWork w = work();
    w.work = comm_.barrier();
    return w;
  }

 private:
  ConformanceWork work() const {
    return {.work = {},
            .text = fmt::format("rank {} of {} {} {{{}}}, {}", me_, comm_.backend(), comm_.name(),
                                fmt::join(comm_.ranks(), ", "), to_string(case_)),
            .out = {},
            .expected = {},
            .in = {},
            .in_before = {}};
  }
  void keep(ConformanceWork& w, const at::Tensor& in) const {
    w.in = laid_out(case_, in);
    w.in_before = in.clone();
  }
  Sizes whole() const { return sizes(sum_of(case_.rows), case_.tail); }
  Sizes piece(int rank) const { return sizes(case_.rows[at_index(rank)], case_.tail); }
  Sizes rows_from(int rank) const {
    const auto first = case_.rows.begin() + std::int64_t{rank} * n_;
    return {first, first + n_};
  }
  at::Tensor own_rows(const at::Tensor& x) const {
    const auto mine = case_.rows.begin() + me_;
    return x.narrow(0, std::accumulate(case_.rows.begin(), mine, std::int64_t{0}), *mine);
  }

  Communicator& comm_;
  const ConformanceCase& case_;
  const int me_;
  const int n_;
};

std::string first_difference(const at::Tensor& got, const at::Tensor& expected) {
  if (got.sizes() != expected.sizes()) return "sizes differ";
  const at::Tensor flat = got.reshape({-1});
  const at::Tensor right = expected.reshape({-1});
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    if (flat[i].equal(right[i])) continue;
    return fmt::format("element {} of {} is {}, not {}", i, flat.numel(), flat[i].item().toDouble(),
                       right[i].item().toDouble());
  }
  return "equal";
}

void expect_equal(const at::Tensor& got, const at::Tensor& expected, const std::string& text) {
  if (!expected.defined()) return;
  CHECK(got.equal(expected), "{}: {}", text, first_difference(got, expected));
}

}  // namespace

Operation draw_operation(Draws& draws) { return one_of(draws, kOperations); }

ConformanceCase draw_case(Draws& draws, Operation operation, int members) {
  ConformanceCase c;
  c.operation = operation;
  c.dtype = one_of(draws, kDtypes);
  c.op = one_of(draws, kOps);
  c.root = static_cast<int>(draws.below(members));
  // A rank sends to itself where it is alone.
  c.to = static_cast<int>((c.root + 1 + draws.below(std::max(1, members - 1))) % members);
  const std::int64_t dims = draws.below(3);
  for (std::int64_t dim = 0; dim < dims; ++dim) c.tail.push_back(1 + draws.below(7));
  const bool even = draws.below(3) == 0;
  const std::int64_t most = 1 + draws.below(draws.below(8) == 0 ? 400 : 6);
  const int pieces = operation == Operation::kAllToAll ? members * members : members;
  for (int i = 0; i < pieces; ++i) c.rows.push_back(even ? most : draws.below(most + 1));
  c.numbers = static_cast<std::uint64_t>(draws.below(std::int64_t{1} << 60));
  c.layout = static_cast<int>(draws.below(3));
  c.in_place = draws.below(3) == 0;
  return c;
}

std::string to_string(const ConformanceCase& c) {
  return fmt::format("{} {} {}, root {}, to {}, rows {{{}}} of [{}], layout {}{}",
                     name(c.operation), name(c.op), c10::toString(c.dtype), c.root, c.to,
                     fmt::join(c.rows, ", "), fmt::join(c.tail, ", "), c.layout,
                     c.in_place ? ", in place" : "");
}

void ConformanceWork::finish() {
  work.wait();
  expect_equal(out, expected, text);
  expect_equal(in, in_before, text + ": the input has changed");
}

std::vector<ConformanceWork> start_case(Communicator& comm, const ConformanceCase& c) {
  Starter starter(comm, c);
  std::vector<ConformanceWork> started;
  switch (c.operation) {
    case Operation::kAllReduce:
      started.push_back(starter.all_reduce());
      break;
    case Operation::kAllGather:
      started.push_back(starter.all_gather());
      break;
    case Operation::kReduceScatter:
      started.push_back(starter.reduce_scatter());
      break;
    case Operation::kAllToAll:
      started.push_back(starter.all_to_all());
      break;
    case Operation::kBroadcast:
      started.push_back(starter.broadcast());
      break;
    case Operation::kBarrier:
      started.push_back(starter.barrier());
      break;
    case Operation::kSend:
    case Operation::kRecv:
      if (comm.rank() == c.root) started.push_back(starter.send());
      if (comm.rank() == c.to) started.push_back(starter.recv());
      break;
    case Operation::kGroup:
      break;
  }
  return started;
}

}  // namespace quatrain
