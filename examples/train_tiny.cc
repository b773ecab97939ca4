// SPDX-License-Identifier: Apache-2.0
// A model trained through the library alone: bytes of a sentence that repeats, a two-layer Llama,
// one rank. Prints the loss as it falls and ends with 1 if it did not.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "quatrain/comm/self/self.h"
#include "quatrain/data/data_loader.h"
#include "quatrain/data/token_file.h"
#include "quatrain/data/tokenizer.h"
#include "quatrain/engine/executor.h"
#include "quatrain/engine/rank_thread.h"
#include "quatrain/kernels/memory.h"
#include "quatrain/model/model.h"
#include "quatrain/optim/lr_schedule.h"
#include "quatrain/optim/optimizer.h"
#include "quatrain/schedule/schedule.h"

using namespace quatrain;  // NOLINT: a program of one screen

int main(int argc, char** argv) {
  const std::filesystem::path prefix = std::filesystem::path(argc > 1 ? argv[1] : ".") / "tiny";
  install_counting_allocator();

  // Data: text to ids to a token file.
  const auto tokenizer = open_tokenizer("bytes");
  std::string text;
  for (int i = 0; i < 200; ++i) text += "Sing, O goddess, the anger of Achilles. ";
  MegatronWriter writer(prefix, tokenizer->vocab_size());
  writer.add_document(tokenizer->encode(text));
  writer.finish();

  // Model.
  ModelSpec spec;
  spec.vocab = tokenizer->vocab_size();
  spec.hidden = 64, spec.layers = 2, spec.ffn = 128, spec.max_positions = 32;
  spec.heads = 4, spec.kv_heads = 2, spec.head_dim = 16;

  MemoryOwner memory;
  const RankThread rank({.threads = 1, .memory = &memory});
  const auto world = make_self_communicator();
  RankGroups groups = make_rank_groups(*world, Mesh(), false);
  Model model(spec, {});
  ZeroUnits units(model, groups, /*zero_stage=*/0);
  Pipeline pipeline(*groups.pipe, /*rank_of_stage=*/{0});
  units.allocate(/*with_grads=*/true);
  units.initialise(/*seed=*/1);
  auto optimizer = make_optimizer({.name = "adamw", .lr = 3e-3}, units.shards());
  optimizer->allocate();

  // Steps: four sequences each, in two micro-batches.
  std::vector<DataSource> sources;
  sources.push_back({open_token_file(prefix.string() + ".idx", TokenFormat::kAuto), 1.0});
  const auto data = make_train_loader(
      std::move(sources), {.seq_len = 32, .global_batch = 4, .microbatch_size = 2, .seed = 1});
  Executor executor({model, units, pipeline, *optimizer, *data, *world},
                    {.lr = 3e-3, .max_norm = 1.0});
  const Schedule schedule =
      with_optimizer_step(make_schedule("1f1b", {.num_ranks = 1, .num_microbatches = 2}));
  double first = 0.0;
  double last = 0.0;
  for (int step = 1; step <= 60; ++step) {
    last = executor.run(schedule, step, /*lr_factor=*/1.0).loss;
    if (step == 1) first = last;
    if (step % 20 == 0) std::printf("step %d  loss %.4f\n", step, last);
  }
  return last < 0.5 * first ? 0 : 1;
}
