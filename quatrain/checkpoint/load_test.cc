// SPDX-License-Identifier: Apache-2.0
// Loads: of other models, of parts, of damaged runs; and what they read.
#include "quatrain/checkpoint/load.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/base/error.h"
#include "quatrain/checkpoint/box.h"
#include "quatrain/checkpoint/checkpointer.h"
#include "quatrain/checkpoint/inspect.h"
#include "quatrain/checkpoint/reader.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/checkpoint/testing/memory_file_system.h"
#include "quatrain/checkpoint/testing/test_run.h"
#include "quatrain/comm/self/self.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using testing::for_each_rank;
using ::testing::HasSubstr;
using testing::MemoryFileSystem;
using ::testing::Not;
using testing::step_path;
using testing::TestRun;

HeldPiece whole(const std::string& name, const std::string& kind, at::Tensor values) {
  const std::vector<std::int64_t> shape = values.sizes().vec();
  return {{name, kind}, shape, whole_box(shape), std::move(values)};
}

void save_whole(FileSystem& files, std::int64_t step, const std::vector<HeldPiece>& pieces) {
  const auto comm = make_self_communicator();
  Checkpointer checkpointer(files, *comm, {.folder = "/run"});
  checkpointer.save({.step = step}, pieces);
  checkpointer.finish();
}

std::vector<HeldPiece> model() {
  return {whole("layers.0.up.weight", "weight", at::arange(12).to(at::kFloat).view({3, 4})),
          whole("layers.0.up.weight", "exp_avg", at::arange(12).to(at::kFloat).view({3, 4})),
          whole("layers.0.down.weight", "weight", at::arange(12).to(at::kFloat).view({4, 3})),
          whole("norm.weight", "weight", at::arange(4).to(at::kFloat))};
}

class Load : public ::testing::Test {
 protected:
  Load() { save_whole(files_, 10, model()); }

  std::string refusal(const std::vector<HeldPiece>& into, const RestoreOptions& options = {}) {
    try {
      load_checkpoint(files_, *comm_, path_, into, options);
      return "accepted";
    } catch (const DataError& error) {
      return error.what();
    }
  }

  MemoryFileSystem files_;
  std::filesystem::path path_ = "/run/step-00000010";
  std::unique_ptr<Communicator> comm_ = make_self_communicator();
};

TEST_F(Load, Case146RefusesWhatIsNoCheckpoint) {
  path_ = "/run/step-00000011";
  EXPECT_THAT(refusal(model()), HasSubstr("/run/step-00000011 is no checkpoint"));
  path_ = "/run";
  EXPECT_THAT(refusal(model()), HasSubstr("/run is no checkpoint"));
  EXPECT_EQ(load_newest(files_, *comm_, "/nowhere", model()), std::nullopt);
}

TEST_F(Load, Case146RefusesAnotherModel) {
  std::vector<HeldPiece> other = model();
  other[2].id.name = "layers.0.dawn.weight";
  other[3] = whole("norm.weight", "weight", at::zeros({5}));
  EXPECT_THAT(
      refusal(other),
      AllOf(HasSubstr("not a checkpoint of this model"),
            HasSubstr("1 of 4 tensors are missing: layers.0.dawn.weight (nearest: "
                      "layers.0.down.weight)"),
            HasSubstr("1 of 4 tensors have another shape or dtype: norm.weight is F32 [4], wanted "
                      "F32 [5]"),
            HasSubstr("1 of 4 tensors in it are not wanted: layers.0.down.weight")));
  EXPECT_TRUE(other[0].values.equal(model()[0].values));
}

TEST_F(Load, ConvertsNothing) {
  std::vector<HeldPiece> other = model();
  other[3] = whole("norm.weight", "weight", at::zeros({4}, at::kBFloat16));
  EXPECT_THAT(refusal(other), HasSubstr("norm.weight is F32 [4], wanted BF16 [4]"));
}

TEST_F(Load, TakesAPartWhenToldSo) {
  const std::vector<HeldPiece> weights{whole("norm.weight", "weight", at::zeros({4}))};
  EXPECT_THAT(refusal(weights), HasSubstr("3 of 4 tensors in it are not wanted"));
  EXPECT_EQ(refusal(weights, {.allow_extra = true}), "accepted");
  EXPECT_TRUE(weights[0].values.equal(model()[3].values));
}

TEST_F(Load, RenamesParameters) {
  const std::vector<HeldPiece> weights{whole("final_norm.weight", "weight", at::zeros({4}))};
  EXPECT_EQ(
      refusal(weights, {.allow_extra = true, .rename = {{"final_norm.weight", "norm.weight"}}}),
      "accepted");
  EXPECT_TRUE(weights[0].values.equal(model()[3].values));
}

// Each rank wants its own; what one lacks or nobody wants is told to all in the same words.
TEST_F(Load, RanksRefuseTogether) {
  std::atomic<int> refused = 0;
  for_each_rank(3, [&](Communicator& comm) {
    std::vector<HeldPiece> own{model()[static_cast<std::size_t>(comm.rank())]};
    if (comm.rank() == 2) own.push_back(whole("extra.weight", "weight", at::zeros({1})));
    try {
      load_checkpoint(files_, comm, path_, own);
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("1 of 4 tensors are missing: extra.weight"),
                                      HasSubstr("1 of 4 tensors in it are not wanted: norm")));
      ++refused;
    }
  });
  EXPECT_EQ(refused, 3);
}

TEST(LoadNewest, FallsBackToTheLastThatIsWhole) {
  TestRun run;
  run.options.keep = 5;
  MemoryFileSystem files;
  for (const std::int64_t step : {10, 20, 30, 40}) run.save(files, step);
  auto damaged = files.files();
  damaged["/run/step-00000040/manifest.json"].pop_back();
  std::string& data = damaged["/run/step-00000030/rank-00000.safetensors"];
  data.back() = static_cast<char>(data.back() ^ 1);
  MemoryFileSystem after(damaged);
  EXPECT_EQ(run.load(after, 7, 3), 20);
  EXPECT_EQ(newest_valid(after, "/run"), 30);  // which does not read the data
}

TEST(LoadNewest, SaysWhenNothingIsWhole) {
  TestRun run;
  MemoryFileSystem files;
  for (const std::int64_t step : {10, 20}) run.save(files, step);
  for (const std::int64_t step : {10, 20}) {
    files.set(step_path(run, step) / "manifest.json", "{}");
  }
  try {
    run.load(files);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no checkpoint in /run is whole"),
                                    HasSubstr("step-00000010"), HasSubstr("step-00000020")));
  }
}

// A model that does not fit is no damage: an older checkpoint would be the wrong answer.
TEST(LoadNewest, DoesNotFallBackForAnotherModel) {
  MemoryFileSystem files;
  save_whole(files, 10, {whole("w", "weight", at::zeros({2}))});
  save_whole(files, 20, {whole("w", "weight", at::zeros({3}))});
  const std::vector<HeldPiece> into{whole("w", "weight", at::zeros({2}))};
  EXPECT_THROW(load_newest(files, *make_self_communicator(), "/run", into), DataError);
}

TEST(Reader, Case049RowsThatDoNotDivide) {
  for (const std::int64_t rows : {1, 3, 6, 7}) {
    const at::Tensor values = at::arange(rows * 6).to(at::kFloat).view({rows, 6});
    const auto held = [&](int dp, int tp, int dp_rank, int tp_rank) {
      const Range columns = piece(6, tp, tp_rank);
      const Range own = piece(rows, dp, dp_rank);
      const Box box{{own.begin, columns.begin}, {own.size(), columns.size()}};
      return HeldPiece{{"w", "weight"}, {rows, 6}, box, values_in(values, box)};
    };
    MemoryFileSystem files;
    for_each_rank(8, [&](Communicator& comm) {
      const HeldPiece own = held(4, 2, comm.rank() / 2, comm.rank() % 2);
      Checkpointer checkpointer(files, comm, {.folder = "/run"});
      checkpointer.save({.step = 1}, {&own, 1});
      checkpointer.finish();
    });
    EXPECT_TRUE(verify_checkpoint(files, "/run/step-00000001").empty());
    for (const int dp : {1, 2, 3, 4}) {
      for_each_rank(dp, [&](Communicator& comm) {
        HeldPiece own = held(dp, 1, comm.rank(), 0);
        const at::Tensor right = own.values;
        own.values = at::zeros(right.sizes(), right.options());
        load_checkpoint(files, comm, "/run/step-00000001", {&own, 1});
        EXPECT_TRUE(own.values.equal(right)) << rows << " rows, rank " << comm.rank();
      });
    }
  }
}

TEST(Reader, Case050NamesAFileThatIsGone) {
  TestRun run{.ranks = 3};
  MemoryFileSystem files;
  run.save(files, 10);
  auto fewer = files.files();
  fewer.erase("/run/step-00000010/rank-00001.safetensors");
  MemoryFileSystem after(fewer);
  EXPECT_THAT(to_string(verify_checkpoint(after, "/run/step-00000010")),
              HasSubstr("rank-00001.safetensors"));
  try {
    run.load(after);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank-00001.safetensors is not there"));
  }
}

// A checkpoint of row shards and of column shards, read by other shards of either kind.
TEST(Reader, ReadsLittleMoreThanItNeeds) {
  const std::vector<std::int64_t> shape{768, 3072};
  const auto box_of = [&](std::size_t dim, int parts, int part) {
    Box box = whole_box(shape);
    const Range own = piece(shape[dim], parts, part);
    box.begin[dim] = own.begin;
    box.size[dim] = own.size();
    return box;
  };
  const at::Tensor values = at::arange(768 * 3072).to(at::kFloat).view(shape);
  for (const std::size_t saved_dim : {0U, 1U}) {
    MemoryFileSystem files;
    for_each_rank(4, [&](Communicator& comm) {
      const Box box = box_of(saved_dim, 4, comm.rank());
      const HeldPiece own{{"w", "weight"}, shape, box, values_in(values, box)};
      Checkpointer checkpointer(files, comm, {.folder = "/run"});
      checkpointer.save({.step = 1}, {&own, 1});
      checkpointer.finish();
    });
    for (const std::size_t dim : {0U, 1U}) {
      for (const int parts : {1, 2, 3, 4, 8}) {
        CheckpointReader reader(files, "/run/step-00000001");
        const Box box = box_of(dim, parts, parts / 2);
        const HeldPiece into{{"w", "weight"}, shape, box, at::empty(box.size)};
        reader.read({&into, 1});
        EXPECT_TRUE(into.values.equal(values_in(values, box)));
        // Thirds end inside of tiles, of which there are eight by columns.
        const double most = (parts == 3 ? 1.51 : 1.01) * static_cast<double>(box.numel()) * 4;
        EXPECT_LE(static_cast<double>(reader.bytes_read()), most)
            << "cut " << saved_dim << " read " << dim << " by " << parts;
      }
    }
  }
}

// Columns whose neighbours are nearer than a call is dear.
TEST(Reader, JoinsRunsThatAreClose) {
  const std::vector<std::int64_t> shape{64, 128};
  const at::Tensor values = at::arange(64 * 128).to(at::kFloat).view(shape);
  MemoryFileSystem files;
  save_whole(files, 1, {whole("w", "weight", values)});
  for (const std::int64_t begin : {0, 64}) {
    CheckpointReader reader(files, "/run/step-00000001");
    const Box box{{0, begin}, {64, 64}};
    const HeldPiece into{{"w", "weight"}, shape, box, at::zeros(box.size)};
    reader.read({&into, 1});
    EXPECT_TRUE(into.values.equal(values_in(values, box)));
    EXPECT_GT(reader.bytes_read(), 64 * 128 * 4 - 512);
  }
}

TEST(Inspect, DescribesAndCompares) {
  MemoryFileSystem files;
  std::vector<HeldPiece> pieces = model();
  save_whole(files, 10, pieces);
  const std::string text = describe(read_manifest(files, "/run/step-00000010"), true);
  EXPECT_THAT(text, AllOf(HasSubstr("step 10"), HasSubstr("exp_avg"), HasSubstr("3 x 4")));

  pieces[0].values.view({-1})[5].fill_(7.0);
  pieces[3] = whole("norm.weight", "weight", at::zeros({4}, at::kBFloat16));
  pieces.push_back(whole("new.weight", "weight", at::zeros({1})));
  pieces.erase(pieces.begin() + 2);
  save_whole(files, 20, pieces);
  const CheckpointDifference found =
      diff_checkpoints(files, "/run/step-00000010", "/run/step-00000020");
  EXPECT_THAT(found.state, ::testing::ElementsAre("step: 10 and 20"));
  ASSERT_EQ(found.tensors.size(), 4U);
  EXPECT_EQ(found.tensors[0].what, "only in the first");
  EXPECT_EQ(to_string(found.tensors[0].id), "layers.0.down.weight");
  EXPECT_EQ(found.tensors[1].elements, 1);
  EXPECT_EQ(found.tensors[1].max_difference, 2.0);
  EXPECT_EQ(found.tensors[2].what, "F32 [4] and BF16 [4]");
  EXPECT_EQ(found.tensors[3].what, "only in the second");
  EXPECT_TRUE(diff_checkpoints(files, "/run/step-00000010", "/run/step-00000010").empty());
}

// The experts of one of `ep` ranks: weights hold the expert's number, moments it and a half.
std::vector<HeldPiece> experts_of(int rank, int ep, bool filled) {
  constexpr int kExperts = 4;
  std::vector<HeldPiece> pieces;
  for (int expert = rank * kExperts / ep; expert < (rank + 1) * kExperts / ep; ++expert) {
    const std::string name = fmt::format("layers.0.experts.{}.up.weight", expert);
    for (const char* kind : {"weight", "exp_avg", "exp_avg_sq"}) {
      const double value = kind == std::string_view("weight") ? expert : expert + 0.5;
      pieces.push_back(whole(name, kind, at::full({3, 2}, filled ? value : -1.0)));
    }
  }
  return pieces;
}

TEST(LoadExperts, case_046_every_rank_gets_its_experts_and_their_moments) {
  MemoryFileSystem files;
  for_each_rank(2, [&](Communicator& comm) {
    Checkpointer checkpointer(files, comm, {.folder = "/run"});
    checkpointer.save({.step = 10}, experts_of(comm.rank(), 2, true));
    checkpointer.finish();
  });
  for (const int ep : {1, 2, 4}) {
    for_each_rank(ep, [&](Communicator& comm) {
      const std::vector<HeldPiece> got = experts_of(comm.rank(), ep, false);
      load_checkpoint(files, comm, "/run/step-00000010", got);
      const std::vector<HeldPiece> want = experts_of(comm.rank(), ep, true);
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(got[i].values.equal(want[i].values)) << to_string(got[i].id) << ", ep " << ep;
      }
    });
  }
}

}  // namespace
}  // namespace quatrain
