// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/ownership.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "quatrain/base/error.h"
#include "quatrain/checkpoint/box.h"
#include "quatrain/checkpoint/testing/random_job.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;
using Lists = std::vector<std::vector<PieceInfo>>;

PieceInfo rows(const std::string& name, std::int64_t all, std::int64_t begin, std::int64_t end) {
  return {{name, "weight"}, {all, 8}, {{begin, 0}, {end - begin, 8}}, "F32"};
}

std::vector<std::int64_t> bytes_by_rank(const Lists& held,
                                        const std::vector<std::vector<OwnedBox>>& owned) {
  std::vector<std::int64_t> bytes;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    bytes.push_back(0);
    for (const OwnedBox& own : owned[rank]) {
      bytes.back() += own.box.numel() * itemsize_of(held[rank][own.place].dtype);
    }
  }
  return bytes;
}

TEST(Ownership, WritesEachElementOnce) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    testing::Draws draws(seed, "ownership");
    const auto tensors = testing::random_tensors(draws);
    Lists held;
    for (const auto& pieces : testing::random_cut(draws, tensors, 5)) {
      held.push_back(infos_of(pieces));
    }
    const auto owned = assign_writers(held, draws.below(2) == 0 ? 64 : kPartBytes);
    std::map<TensorId, std::vector<Box>> written;
    for (std::size_t rank = 0; rank < held.size(); ++rank) {
      for (const OwnedBox& own : owned[rank]) {
        EXPECT_TRUE(contains(held[rank][own.place].box, own.box));
        written[held[rank][own.place].id].push_back(own.box);
      }
    }
    for (const auto& tensor : tensors) {
      EXPECT_EQ(coverage_fault(written[tensor.id], tensor.values.sizes().vec()), "");
    }
  }
}

TEST(Ownership, IsTheSameWhoeverAsks) {
  testing::Draws draws(3, "ownership");
  const auto tensors = testing::random_tensors(draws);
  Lists held;
  for (const auto& pieces : testing::random_cut(draws, tensors, 4))
    held.push_back(infos_of(pieces));
  Lists told;
  for (const auto& pieces : held) told.push_back(pieces_from_text(to_text(pieces)));
  EXPECT_EQ(told, held);
  EXPECT_EQ(assign_writers(told), assign_writers(held));
}

TEST(Ownership, BalancesReplicas) {
  Lists held(4);
  for (auto& pieces : held) {
    for (int i = 0; i < 24; ++i) {
      pieces.push_back(rows(fmt::format("t{}", i), 10 + 7 * i, 0, 10 + 7 * i));
    }
  }
  const std::vector<std::int64_t> bytes = bytes_by_rank(held, assign_writers(held));
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  EXPECT_LE(*most * 20, *least * 21);
}

TEST(Ownership, CutsALargeReplicaAmongItsHolders) {
  const std::int64_t large = 6 * kPartBytes / 32;
  const Lists held(4, {rows("table", large, 0, large), rows("norm", 1, 0, 1)});
  const std::vector<std::int64_t> bytes = bytes_by_rank(held, assign_writers(held));
  EXPECT_LE(*std::max_element(bytes.begin(), bytes.end()), 6 * kPartBytes / 4 + 32);
}

// Two tensor-parallel ranks hold a norm whole and cut their units, which differ, among two each.
TEST(Ownership, CutsCopiesAlongEachOthersEdges) {
  const Lists held{{rows("norm", 64, 0, 32)},
                   {rows("norm", 64, 32, 64)},
                   {rows("norm", 64, 0, 48)},
                   {rows("norm", 64, 48, 64)}};
  std::vector<Box> written;
  for (const auto& boxes : assign_writers(held)) {
    for (const OwnedBox& own : boxes) written.push_back(own.box);
  }
  EXPECT_EQ(coverage_fault(written, held[0][0].shape), "");
  EXPECT_EQ(written.size(), 3U);
}

// A thousand replicas do not make a thousand crumbs.
TEST(Ownership, CutsNoSmallParts) {
  const std::int64_t size = 3 * kPartBytes / 32;
  const Lists held(1000, {rows("table", size, 0, size)});
  std::size_t parts = 0;
  for (const auto& boxes : assign_writers(held)) parts += boxes.size();
  EXPECT_EQ(parts, 3U);
}

TEST(Ownership, Case050RefusesPiecesThatDoNotMakeUpATensor) {
  const auto refusal = [](const Lists& held) -> std::string {
    try {
      assign_writers(held);
      return "accepted";
    } catch (const BugError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal({{rows("w", 8, 0, 4)}, {rows("w", 8, 4, 8)}}), "accepted");
  EXPECT_THAT(refusal({{rows("w", 8, 0, 4)}, {rows("w", 8, 0, 4)}}), HasSubstr("32 of 64"));
  EXPECT_THAT(refusal({{rows("w", 8, 0, 5)}, {rows("w", 8, 6, 9)}}), HasSubstr("outside"));
  EXPECT_THAT(refusal({{rows("w", 8, 0, 8)}, {rows("w", 9, 0, 9)}}), HasSubstr("rank 1 holds w"));
}

}  // namespace
}  // namespace quatrain
