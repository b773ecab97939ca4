// SPDX-License-Identifier: Apache-2.0
// Samples read from token files into rows: tokens, next-token labels, positions and documents.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quatrain/data/data_source.h"
#include "quatrain/data/sampler.h"
#include "quatrain/data/step_queue.h"

namespace quatrain {

inline constexpr std::int64_t kNotTrained = -100;

class RowReader {
 public:
  struct Options {
    std::int64_t seq_len = 0;
    bool mask_documents = false;
    std::optional<std::int64_t> eod_id = {};
  };
  // Throws ConfigError when documents are masked and nothing says where they end.
  RowReader(std::vector<DataSource> sources, const Options& options);

  const std::vector<DataSource>& sources() const { return sources_; }
  std::int64_t samples(std::size_t source) const;   // how many the source is cut into
  std::int64_t first_id(std::size_t source) const;  // its samples' ids begin here
  // One micro-batch of `rows` rows; rows beyond the samples, and samples of source -1, are missing.
  BatchRows read(std::span<const Sample> samples, std::int64_t rows) const;

 private:
  struct Row {
    std::span<std::int64_t> tokens, labels, positions, documents;
  };
  void read_row(const Sample& sample, const Row& row) const;
  // Offsets within (0, ids.size()) at which a document begins; `begin`: of ids in the file.
  std::vector<std::int64_t> starts(const TokenFile& file, std::int64_t begin,
                                   std::span<const std::int64_t> ids) const;

  std::vector<DataSource> sources_;
  Options options_;
};

}  // namespace quatrain
