// SPDX-License-Identifier: Apache-2.0
// What a loader reads from: token files with weights, opened as a run's configuration names them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "quatrain/data/token_file.h"
#include "quatrain/data/tokenizer.h"
#include "quatrain/spec/run_config.h"

namespace quatrain {

struct DataSource {
  std::unique_ptr<TokenFile> file;
  double weight = 1.0;
};

struct OpenOptions {
  // auto (by ending and magic) | megatron | llmc | nanogpt | text
  std::string_view format = "auto";
  const Tokenizer* tokenizer = nullptr;  // needed for text
  std::filesystem::path cache = {};      // folder of tokenized text
  std::int64_t model_vocab = 0;          // every id is checked against it; 0: unchecked
  int threads = 0;                       // of tokenising; 0: all cores
};

// Text files are tokenized once into the cache. Throws ConfigError, DataError, StorageError.
std::vector<DataSource> open_sources(const std::vector<DataPath>& paths,
                                     const OpenOptions& options);

}  // namespace quatrain
