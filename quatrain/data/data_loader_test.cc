// SPDX-License-Identifier: Apache-2.0
// Loaders: labels and masks of documents, missing samples, every geometry the same samples.
#include "quatrain/data/data_loader.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>

#include "quatrain/base/error.h"
#include "quatrain/data/testing/scratch.h"

namespace quatrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Scratch;
using Ids = std::vector<std::int64_t>;

Ids values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.reshape({-1});
  const auto view = flat.accessor<std::int64_t, 1>();
  Ids out;
  for (std::int64_t i = 0; i < view.size(0); ++i) out.push_back(view[i]);
  return out;
}

std::vector<DataSource> source(const Scratch& scratch, const std::vector<Ids>& documents) {
  MegatronWriter writer(scratch.path("m"), 60000);
  for (const Ids& ids : documents) writer.add_document(ids);
  writer.finish();
  std::vector<DataSource> sources(1);
  sources[0].file = open_token_file(scratch.path("m"), TokenFormat::kAuto);
  return sources;
}
std::vector<DataSource> opened(const Scratch& scratch, int copies = 1) {
  std::vector<DataSource> sources(static_cast<std::size_t>(copies));
  for (DataSource& one : sources) one.file = open_token_file(scratch.path("m"), TokenFormat::kAuto);
  return sources;
}
Ids counted(std::int64_t n) {
  Ids ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(TrainLoaderTest, LabelsAreTheNextTokens) {
  const Scratch scratch;
  auto loader =
      make_train_loader(source(scratch, {counted(9)}),
                        {.seq_len = 4, .global_batch = 2, .microbatch_size = 2, .shuffle = false});
  EXPECT_EQ(loader->num_microbatches(), 1);
  const Batch& batch = loader->microbatch(1, 0);
  EXPECT_THAT(values(batch.tokens_BT), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(values(batch.labels_BT), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(values(batch.positions_BT), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(values(batch.sample_ids_B), ElementsAre(0, 1));
  EXPECT_FALSE(batch.documents_BT.defined());
  EXPECT_EQ(batch.trained_tokens, 8);
}

TEST(TrainLoaderTest, case_107_case_109_DocumentsAreMaskedAndPositionsRestart) {
  const Scratch scratch;
  auto loader = make_train_loader(source(scratch, {{10, 11, 9}, {20, 9}, {30, 31, 32, 33, 9}}),
                                  {.seq_len = 9, .mask_documents = true, .shuffle = false});
  const Batch& batch = loader->microbatch(1, 0);
  EXPECT_THAT(values(batch.tokens_BT), ElementsAre(10, 11, 9, 20, 9, 30, 31, 32, 33));
  EXPECT_THAT(values(batch.labels_BT), ElementsAre(11, 9, -100, 9, -100, 31, 32, 33, 9));
  EXPECT_THAT(values(batch.positions_BT), ElementsAre(0, 1, 2, 0, 1, 0, 1, 2, 3));
  EXPECT_THAT(values(batch.documents_BT), ElementsAre(0, 0, 0, 1, 1, 2, 2, 2, 2));
  EXPECT_EQ(batch.trained_tokens, 10 - 3);
}

TEST(TrainLoaderTest, case_109_TrainedTokensAreTokensLessDocuments) {
  const Scratch scratch;
  std::vector<Ids> documents;
  std::int64_t tokens = 0;
  for (std::int64_t d = 0; d < 23; ++d) {
    documents.push_back(counted(1 + d * 7 % 13));
    tokens += static_cast<std::int64_t>(documents.back().size());
  }
  for (const std::int64_t seq_len : {1, 4, 5, 16, 1000}) {
    auto loader = make_eval_loader(source(scratch, documents),
                                   {.seq_len = seq_len, .global_batch = 3, .mask_documents = true});
    std::int64_t trained = 0;
    for (std::int64_t step = 0; step < num_eval_steps(*loader); ++step) {
      trained += loader->trained_tokens(step);
    }
    EXPECT_EQ(trained, tokens - 23) << seq_len;
  }
}

TEST(TrainLoaderTest, EndOfDocumentIdsServeWhereTheFormatKnowsNoDocuments) {
  const Scratch scratch;
  const std::uint16_t ids[] = {1, 2, 9, 3, 9, 4, 5};
  scratch.write("n.bin", {reinterpret_cast<const char*>(ids), sizeof(ids)});
  const auto open = [&] {
    std::vector<DataSource> sources(1);
    sources[0].file = open_token_file(scratch.path("n.bin"), TokenFormat::kAuto);
    return sources;
  };
  auto loader = make_train_loader(
      open(), {.seq_len = 6, .mask_documents = true, .eod_id = 9, .shuffle = false});
  EXPECT_THAT(values(loader->microbatch(1, 0).labels_BT), ElementsAre(2, 9, -100, 9, -100, 5));
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { make_train_loader(open(), {.seq_len = 6, .mask_documents = true}); }),
              HasSubstr("mask_documents"));
}

TEST(TrainLoaderTest, ShortLastSampleIsPaddedAndNotTrained) {
  const Scratch scratch;
  auto loader = make_train_loader(source(scratch, {counted(7)}), {.seq_len = 4,
                                                                  .global_batch = 2,
                                                                  .microbatch_size = 2,
                                                                  .mask_documents = true,
                                                                  .shuffle = false});
  const Batch& batch = loader->microbatch(1, 0);
  EXPECT_THAT(values(batch.tokens_BT), ElementsAre(0, 1, 2, 3, 4, 5, 0, 0));
  EXPECT_THAT(values(batch.labels_BT), ElementsAre(1, 2, 3, 4, 5, 6, -100, -100));
  EXPECT_THAT(values(batch.documents_BT), ElementsAre(0, 0, 0, 0, 0, 0, 1, 1));
  EXPECT_EQ(batch.trained_tokens, 6);
}

TEST(TrainLoaderTest, case_077_MissingSamplesAreFullyMasked) {
  const Scratch scratch;
  std::map<int, std::vector<Ids>> read;
  source(scratch, {counted(41)});  // 10 samples of 4
  std::int64_t trained = 0;
  for (int rank = 0; rank < 3; ++rank) {
    auto loader = make_train_loader(opened(scratch), {.seq_len = 4,
                                                      .global_batch = 10,
                                                      .microbatch_size = 2,
                                                      .dp_rank = rank,
                                                      .dp_size = 3,
                                                      .shuffle = false});
    EXPECT_EQ(loader->num_microbatches(), 2);
    for (int m = 0; m < 2; ++m) {
      const Batch& batch = loader->microbatch(1, m);
      EXPECT_EQ(batch.tokens_BT.size(0), 2);
      read[rank].push_back(values(batch.sample_ids_B));
    }
    trained += loader->trained_tokens(1);
    EXPECT_THAT(loader->cursor(2), ElementsAre(10));
  }
  EXPECT_THAT(read[0], ElementsAre(Ids{0, 1}, Ids{2, 3}));
  EXPECT_THAT(read[1], ElementsAre(Ids{4, 5}, Ids{6, 7}));
  EXPECT_THAT(read[2], ElementsAre(Ids{8, 9}, Ids{-1, -1}));
  EXPECT_EQ(trained, 40);
  auto last = make_train_loader(opened(scratch), {.seq_len = 4,
                                                  .global_batch = 10,
                                                  .microbatch_size = 2,
                                                  .dp_rank = 2,
                                                  .dp_size = 3,
                                                  .shuffle = false});
  const Batch& missing = last->microbatch(1, 1);
  EXPECT_EQ(missing.trained_tokens, 0);
  EXPECT_EQ(values(missing.labels_BT), Ids(8, -100));
}

TEST(TrainLoaderTest, EveryGeometryReadsTheSameSamples) {
  const Scratch scratch;
  source(scratch, {counted(401)});
  const auto ids = [&](std::int64_t step, std::int64_t micro, int ranks) {
    Ids all;
    for (int rank = 0; rank < ranks; ++rank) {
      auto loader = make_train_loader(opened(scratch, 2), {.seq_len = 4,
                                                           .global_batch = 12,
                                                           .microbatch_size = micro,
                                                           .dp_rank = rank,
                                                           .dp_size = ranks,
                                                           .seed = 5});
      for (int m = 0; m < loader->num_microbatches(); ++m) {
        for (const std::int64_t id : values(loader->microbatch(step, m).sample_ids_B)) {
          if (id >= 0) all.push_back(id);
        }
      }
    }
    return all;
  };
  const Ids want = ids(3, 12, 1);
  EXPECT_EQ(want.size(), 12U);
  for (const std::int64_t micro : {1, 2, 5}) {
    for (const int ranks : {1, 2, 3, 5}) EXPECT_EQ(ids(3, micro, ranks), want);
  }
}

TEST(TrainLoaderTest, PrefetchChangesNothingAndStepsMayJump) {
  const Scratch scratch;
  source(scratch, {counted(999)});
  LoaderOptions options{.seq_len = 8, .global_batch = 4, .microbatch_size = 2, .seed = 1};
  options.prefetch = 0;
  auto plain = make_train_loader(opened(scratch), options);
  options.prefetch = 3;
  auto ahead = make_train_loader(opened(scratch), options);
  for (const std::int64_t step : {1, 2, 3, 4, 5, 2, 3, 60, 61, 7, 7, 1}) {
    for (const int m : {1, 0}) {
      EXPECT_EQ(values(plain->microbatch(step, m).tokens_BT),
                values(ahead->microbatch(step, m).tokens_BT));
    }
  }
}

TEST(TrainLoaderTest, ResumedLoaderReadsTheNextBatch) {
  const Scratch scratch;
  source(scratch, {counted(500)});
  const LoaderOptions options{.seq_len = 4, .global_batch = 6, .microbatch_size = 6, .seed = 8};
  auto whole = make_train_loader(opened(scratch, 3), options);
  auto resumed = make_train_loader(opened(scratch, 3), options, whole->cursor(41), 41);
  for (const std::int64_t step : {41, 42, 50}) {
    EXPECT_EQ(values(whole->microbatch(step, 0).tokens_BT),
              values(resumed->microbatch(step, 0).tokens_BT));
  }
}

// A stand-in for a model: some loss of each (token, label).
double loss_of(const Batch& batch) {
  const Ids tokens = values(batch.tokens_BT), labels = values(batch.labels_BT);
  double sum = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (labels[i] >= 0) sum += static_cast<double>(tokens[i] * 31 % 17 + labels[i] % 5);
  }
  return sum;
}

TEST(EvalLoaderTest, case_034_EverySequenceOnceWhateverTheGeometry) {
  const Scratch scratch;
  std::vector<Ids> documents;
  for (std::int64_t d = 0; d < 7; ++d) documents.push_back(counted(3 + 5 * d));  // 126 tokens
  source(scratch, documents);
  std::map<std::pair<double, std::int64_t>, int> results;
  for (const std::int64_t micro : {1, 2, 7}) {
    for (const int ranks : {1, 2, 3}) {
      for (const std::int64_t batch : {std::int64_t{1}, std::int64_t{4}, micro * ranks}) {
        double loss = 0;
        std::int64_t trained = 0;
        std::map<std::int64_t, int> seen;
        for (int rank = 0; rank < ranks; ++rank) {
          auto loader = make_eval_loader(opened(scratch), {.seq_len = 20,
                                                           .global_batch = batch,
                                                           .microbatch_size = micro,
                                                           .dp_rank = rank,
                                                           .dp_size = ranks,
                                                           .mask_documents = true});
          for (std::int64_t step = 0; step < num_eval_steps(*loader); ++step) {
            trained += loader->trained_tokens(step);
            for (int m = 0; m < loader->num_microbatches(); ++m) {
              const Batch& part = loader->microbatch(step, m);
              loss += loss_of(part);
              for (const std::int64_t id : values(part.sample_ids_B)) seen[id] += id >= 0;
            }
          }
        }
        ++results[{loss, trained}];
        seen.erase(-1);
        EXPECT_EQ(seen.size(), 7U);
        for (const auto& [id, times] : seen) EXPECT_EQ(times, 1) << id;
      }
    }
  }
  EXPECT_EQ(results.size(), 1U);
  EXPECT_EQ(results.begin()->first.second, 126 - 7);
}

}  // namespace
}  // namespace quatrain
