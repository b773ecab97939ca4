// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/inspect.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "quatrain/base/text.h"
#include "quatrain/checkpoint/box.h"
#include "quatrain/checkpoint/reader.h"
#include "quatrain/checkpoint/safetensors_dtype.h"
#include "quatrain/mesh/shape.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kChunkBytes = 64 << 20;

std::string shape_of(const TensorRecord& tensor) {
  return fmt::format("{} [{}]", tensor.dtype, fmt::join(tensor.shape, ", "));
}

std::string kinds_table(const Manifest& manifest) {
  std::map<std::pair<std::string, std::string>, std::pair<std::int64_t, std::int64_t>> kinds;
  for (const TensorRecord& tensor : manifest.tensors) {
    auto& [count, bytes] = kinds[{tensor.id.kind, tensor.dtype}];
    ++count;
    bytes += elements(tensor.shape) * itemsize_of(tensor.dtype);
  }
  Table table({"kind", "dtype", "tensors", "bytes"});
  for (const auto& [kind, sums] : kinds) {
    table.add({kind.first, kind.second, with_commas(sums.first), human_bytes(sums.second)});
  }
  return table.to_string();
}

std::string tensors_table(const Manifest& manifest) {
  Table table({"tensor", "kind", "dtype", "shape", "pieces"});
  for (const TensorRecord& tensor : manifest.tensors) {
    table.add({tensor.id.name, tensor.id.kind, tensor.dtype, join(tensor.shape, " x "),
               std::to_string(tensor.pieces.size())});
  }
  return table.to_string();
}

class StateDiff {
 public:
  template <class T>
  void compare(std::string_view what, const T& a, const T& b) {
    if (a != b) found.push_back(fmt::format("{}: {} and {}", what, a, b));
  }
  std::vector<std::string> found;
};

std::vector<std::string> diff_states(const TrainingState& a, const TrainingState& b) {
  StateDiff diff;
  diff.compare("step", a.step, b.step);
  diff.compare("tokens", a.tokens, b.tokens);
  diff.compare("seed", a.seed, b.seed);
  diff.compare("optimizer steps", a.optimizer_steps, b.optimizer_steps);
  diff.compare("data cursor", join(a.data_cursor, " "), join(b.data_cursor, " "));
  auto extra = a.extra;
  extra.insert(b.extra.begin(), b.extra.end());
  for (const auto& [name, value] : extra) {
    const auto in = [&name = name](const TrainingState& s) {
      const auto found = s.extra.find(name);
      return found == s.extra.end() ? std::string("nothing") : found->second;
    };
    diff.compare(name, in(a), in(b));
  }
  return diff.found;
}

// Rows [begin, begin + rows) of a tensor of both readers, as a box.
std::vector<Box> chunks_of(const TensorRecord& tensor) {
  const Box whole = whole_box(tensor.shape);
  const std::int64_t bytes = whole.numel() * itemsize_of(tensor.dtype);
  if (bytes <= kChunkBytes || tensor.shape.empty()) return {whole};
  const std::int64_t rows = std::max<std::int64_t>(kChunkBytes / (bytes / tensor.shape[0]), 1);
  std::vector<Box> chunks;
  for (std::int64_t begin = 0; begin < tensor.shape[0]; begin += rows) {
    Box& box = chunks.emplace_back(whole);
    box.begin[0] = begin;
    box.size[0] = std::min(rows, tensor.shape[0] - begin);
  }
  return chunks;
}

at::Tensor read_box(CheckpointReader& reader, const TensorRecord& tensor, const Box& box) {
  const at::Tensor values = at::empty(box.size, *find_safetensors_dtype(tensor.dtype)->scalar);
  const HeldPiece piece{tensor.id, tensor.shape, box, values};
  reader.read({&piece, 1});
  return values;
}

at::ScalarType bits_type(std::size_t itemsize) {
  switch (itemsize) {
    case 8:
      return at::kLong;
    case 4:
      return at::kInt;
    case 2:
      return at::kShort;
    default:
      return at::kByte;
  }
}

void add(TensorDifference& difference, const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType bits = bits_type(a.itemsize());
  const auto other = a.view(bits).ne(b.view(bits)).sum().item<std::int64_t>();
  if (other == 0) return;
  difference.elements += other;
  const double largest = a.to(at::kDouble).sub(b.to(at::kDouble)).abs().max().item<double>();
  if (std::isnan(largest) || largest > difference.max_difference) {
    difference.max_difference = largest;
  }
}

TensorDifference compare_values(CheckpointReader& first, CheckpointReader& second,
                                const TensorRecord& tensor) {
  TensorDifference difference{tensor.id, "values"};
  for (const Box& box : chunks_of(tensor)) {
    if (box.numel() == 0) continue;
    add(difference, read_box(first, tensor, box), read_box(second, tensor, box));
  }
  return difference;
}

}  // namespace

std::string describe(const Manifest& manifest, bool tensors) {
  const TrainingState& state = manifest.state;
  std::string text = fmt::format(
      "step {}  {} tokens  seed {}  optimizer steps {}  data cursor [{}]\n"
      "saved by {}  plan {}\n{}\n"
      "{} in {} tensors, {} files\n\n",
      state.step, with_commas(state.tokens), state.seed, state.optimizer_steps,
      join(state.data_cursor, ", "), state.library, state.plan_hash, state.plan,
      human_bytes(manifest.bytes()), manifest.tensors.size(), manifest.files.size());
  for (const auto& [name, value] : state.extra) {
    const auto lines = std::count(value.begin(), value.end(), '\n');
    text += fmt::format("{}: {}\n", name, lines > 0 ? fmt::format("{} lines", lines) : value);
  }
  text += kinds_table(manifest);
  if (tensors) text += "\n" + tensors_table(manifest);
  return text;
}

CheckpointDifference diff_checkpoints(FileSystem& files, const fs::path& first,
                                      const fs::path& second) {
  CheckpointReader a(files, first);
  CheckpointReader b(files, second);
  CheckpointDifference difference{diff_states(a.manifest().state, b.manifest().state), {}};
  for (const TensorRecord& tensor : a.manifest().tensors) {
    const TensorRecord* other = b.manifest().find(tensor.id);
    if (other == nullptr) {
      difference.tensors.push_back({tensor.id, "only in the first"});
    } else if (tensor.shape != other->shape || tensor.dtype != other->dtype) {
      difference.tensors.push_back(
          {tensor.id, fmt::format("{} and {}", shape_of(tensor), shape_of(*other))});
    } else {
      TensorDifference values = compare_values(a, b, tensor);
      if (values.elements > 0) difference.tensors.push_back(std::move(values));
    }
  }
  for (const TensorRecord& tensor : b.manifest().tensors) {
    if (a.manifest().find(tensor.id) != nullptr) continue;
    difference.tensors.push_back({tensor.id, "only in the second"});
  }
  return difference;
}

}  // namespace quatrain
