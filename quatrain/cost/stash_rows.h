// SPDX-License-Identifier: Apache-2.0
// How the parts of a block enter rows into its table, whatever is recomputed.
#pragma once
#include <string_view>
#include <utility>
#include <vector>

#include "quatrain/cost/stash_table.h"

namespace quatrain {

class StashRows {
 public:
  explicit StashRows(const BlockKeeps& keeps) : keeps_(keeps) {}

  const BlockKeeps& keeps() const { return keeps_; }
  void keep(std::string_view op, std::string_view what, std::int64_t elements, StashLife life,
            StashWidth width = StashWidth::kCompute);
  void keep_if(bool kept, std::string_view op, std::string_view what, std::int64_t elements,
               StashLife life, StashWidth width = StashWidth::kCompute) {
    if (kept) keep(op, what, elements, life, width);
  }
  // A norm's output: what the weight half of the product after it reads.
  void norm_output(std::string_view op, std::string_view what, const BlockDims& dims);
  // A row-parallel product's gradient: what the input half gathered, or this rank's rows of it.
  void output_gradient(std::string_view op, std::string_view what, const BlockDims& dims);
  std::vector<StashRow> take() && { return std::move(rows_); }

 private:
  const BlockKeeps& keeps_;
  std::vector<StashRow> rows_;
};

// Latent attention and a mixture of experts (cost/stash_mixture.cc).
void latent_attention_rows(StashRows& rows, const BlockDims& dims);
void mixture_rows(StashRows& rows, const BlockDims& dims);

}  // namespace quatrain
