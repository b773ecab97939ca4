// SPDX-License-Identifier: Apache-2.0
// A sample is seq_len + 1 ids from seq_len * index on: seq_len inputs and the labels one further.
// The last of a file may be short; what is missing is padded and not trained.
#include "quatrain/data/row_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"

namespace quatrain {

RowReader::RowReader(std::vector<DataSource> sources, const Options& options)
    : sources_(std::move(sources)), options_(options) {
  CHECK(!sources_.empty(), "no data sources");
  CHECK(options_.seq_len > 0, "seq_len {}", options_.seq_len);
  for (const DataSource& source : sources_) {
    if (options_.mask_documents && !options_.eod_id && source.file->document_begins().empty()) {
      throw ConfigError(
          fmt::format("data.mask_documents needs to know where documents end, but {} "
                      "files do not say and no tokenizer gives an end-of-document "
                      "id: name data.tokenizer ({})",
                      source.file->format(), source.file->path().string()));
    }
  }
}

std::int64_t RowReader::samples(std::size_t source) const {
  return num_samples(sources_[source].file->num_tokens(), options_.seq_len);
}

std::int64_t RowReader::first_id(std::size_t source) const {
  std::int64_t id = 0;
  for (std::size_t i = 0; i < source; ++i) id += samples(i);
  return id;
}

std::vector<std::int64_t> RowReader::starts(const TokenFile& file, std::int64_t begin,
                                            std::span<const std::int64_t> ids) const {
  std::vector<std::int64_t> out;
  const auto count = static_cast<std::int64_t>(ids.size());
  const auto begins = file.document_begins();
  if (begins.empty()) {
    for (std::int64_t i = 1; i < count; ++i) {
      if (ids[static_cast<std::size_t>(i - 1)] == *options_.eod_id) out.push_back(i);
    }
    return out;
  }
  for (auto at = std::upper_bound(begins.begin(), begins.end(), begin);
       at != begins.end() && *at < begin + count; ++at) {
    if (out.empty() || out.back() != *at - begin) out.push_back(*at - begin);
  }
  return out;
}

void RowReader::read_row(const Sample& sample, const Row& row) const {
  const TokenFile& file = *sources_[static_cast<std::size_t>(sample.source)].file;
  const std::int64_t begin = sample.index * options_.seq_len;
  const std::int64_t count = std::min(options_.seq_len + 1, file.num_tokens() - begin);
  CHECK(count >= 2, "sample {} of {}", sample.index, file.path().string());
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  file.read(begin, ids);
  std::copy(ids.begin(), ids.end() - 1, row.tokens.begin());
  std::copy(ids.begin() + 1, ids.end(), row.labels.begin());
  if (!options_.mask_documents) return;
  std::vector<std::int64_t> cuts = starts(file, begin, ids);
  for (const std::int64_t cut : cuts) {
    row.labels[static_cast<std::size_t>(cut - 1)] = kNotTrained;
  }
  if (count - 1 < options_.seq_len) cuts.push_back(count - 1);  // the padding stands alone
  std::size_t next = 0;
  std::int64_t from = 0;
  for (std::int64_t i = 0; i < options_.seq_len; ++i) {
    while (next < cuts.size() && cuts[next] <= i) from = cuts[next++];
    row.positions[static_cast<std::size_t>(i)] = i - from;
    row.documents[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(next);
  }
}

BatchRows RowReader::read(std::span<const Sample> samples, std::int64_t rows) const {
  const auto width = static_cast<std::size_t>(options_.seq_len);
  const auto size = static_cast<std::size_t>(rows) * width;
  BatchRows out;
  out.tokens.assign(size, 0);
  out.labels.assign(size, kNotTrained);
  out.positions.resize(size);
  if (options_.mask_documents) out.documents.assign(size, 0);
  for (std::size_t i = 0; i < size; ++i) out.positions[i] = static_cast<std::int64_t>(i % width);
  out.sample_ids.assign(static_cast<std::size_t>(rows), -1);
  for (std::size_t r = 0; r < samples.size(); ++r) {
    if (samples[r].source < 0) continue;
    const auto row = [&](std::vector<std::int64_t>& all) {
      return all.empty() ? std::span<std::int64_t>() : std::span(all).subspan(r * width, width);
    };
    read_row(samples[r],
             {row(out.tokens), row(out.labels), row(out.positions), row(out.documents)});
    out.sample_ids[r] = first_id(static_cast<std::size_t>(samples[r].source)) + samples[r].index;
  }
  out.trained_tokens = static_cast<std::int64_t>(out.labels.size()) -
                       std::count(out.labels.begin(), out.labels.end(), kNotTrained);
  return out;
}

}  // namespace quatrain
