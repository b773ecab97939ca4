// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/load.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/exchange.h"
#include "quatrain/checkpoint/reader.h"
#include "quatrain/checkpoint/step_folder.h"

namespace quatrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kShown = 3;

std::vector<HeldPiece> renamed(std::span<const HeldPiece> pieces, const RestoreOptions& options) {
  std::vector<HeldPiece> result(pieces.begin(), pieces.end());
  for (HeldPiece& piece : result) {
    const auto name = options.rename.find(piece.id.name);
    if (name != options.rename.end()) piece.id.name = name->second;
  }
  return result;
}

std::string shape_text(std::string_view dtype, std::span<const std::int64_t> shape) {
  return fmt::format("{} [{}]", dtype, join(shape, ", "));
}

// "3 of 20 missing (a, b, c)", with the first few.
std::string some(std::size_t of, std::string_view what, const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kShown);
  return fmt::format("{} of {} tensors {}: {}{}", names.size(), of, what,
                     join(std::span(names).first(shown), ", "),
                     shown < names.size() ? ", ..." : "");
}

// Whether every tensor is there as wanted, and which of the checkpoint's these are.
bool mark(const Manifest& manifest, std::span<const PieceInfo> wanted, at::Tensor& marks) {
  auto* marked = marks.data_ptr<std::uint8_t>();
  bool fits = true;
  for (const PieceInfo& piece : wanted) {
    const TensorRecord* tensor = manifest.find(piece.id);
    fits =
        fits && tensor != nullptr && tensor->shape == piece.shape && tensor->dtype == piece.dtype;
    if (tensor != nullptr) marked[tensor - manifest.tensors.data()] = 1;
  }
  return fits;
}

// Ranks tell each other what they want only when it does not fit.
void check_fit(Communicator& comm, const CheckpointReader& reader,
               std::span<const PieceInfo> wanted, bool allow_extra) {
  const Manifest& manifest = reader.manifest();
  at::Tensor marks = at::zeros({static_cast<std::int64_t>(manifest.tensors.size())}, at::kByte);
  bool fits = mark(manifest, wanted, marks);
  comm.all_reduce(marks, ReduceOp::kMax).wait();
  const auto* marked = marks.const_data_ptr<std::uint8_t>();
  const bool extra = std::find(marked, marked + marks.numel(), 0) != marked + marks.numel();
  fits = fits && (allow_extra || !extra);
  if (least_of(comm, fits ? 1 : 0) == 1) return;
  std::vector<PieceInfo> all;
  for (const std::string& text : texts_of_all(comm, to_text(wanted))) {
    const std::vector<PieceInfo> pieces = pieces_from_text(text);
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  throw DataError(fmt::format("{} is not a checkpoint of this model: {}", reader.path().string(),
                              misfit(manifest, all, allow_extra)));
}

struct Loaded {
  Failure failure = {};  // what is damaged, the same on every rank
  TrainingState state = {};
};

Loaded try_load(FileSystem& files, Communicator& comm, const fs::path& checkpoint,
                std::span<const HeldPiece> wanted, bool allow_extra) {
  std::unique_ptr<CheckpointReader> reader;
  Failure failure = first_failure(comm, attempt([&] {
                                    if (comm.rank() == 0)
                                      open_checkpoint(files, checkpoint);  // all files, once
                                    reader = std::make_unique<CheckpointReader>(files, checkpoint);
                                  }));
  if (failure) return {failure};
  check_fit(comm, *reader, infos_of(wanted), allow_extra);
  failure = first_failure(comm, attempt([&] { reader->read(wanted); }));
  if (failure) return {failure};
  return {{}, reader->manifest().state};
}

}  // namespace

std::string misfit(const Manifest& manifest, std::span<const PieceInfo> wanted, bool allow_extra) {
  std::map<TensorId, const PieceInfo*> tensors;
  for (const PieceInfo& piece : wanted) tensors.emplace(piece.id, &piece);
  std::vector<std::string> missing, other, extra, known;
  for (const TensorRecord& tensor : manifest.tensors) {
    known.push_back(to_string(tensor.id));
    if (!tensors.contains(tensor.id)) extra.push_back(known.back());
  }
  for (const auto& [id, piece] : tensors) {
    const TensorRecord* tensor = manifest.find(id);
    if (tensor == nullptr) {
      const std::string name = to_string(id);
      const std::vector<std::string> close = nearest(name, known, 1);
      missing.push_back(close.empty() ? name : fmt::format("{} (nearest: {})", name, close[0]));
    } else if (tensor->shape != piece->shape || tensor->dtype != piece->dtype) {
      other.push_back(fmt::format("{} is {}, wanted {}", to_string(id),
                                  shape_text(tensor->dtype, tensor->shape),
                                  shape_text(piece->dtype, piece->shape)));
    }
  }
  std::vector<std::string> faults;
  if (!missing.empty()) faults.push_back(some(tensors.size(), "are missing", missing));
  if (!other.empty()) faults.push_back(some(tensors.size(), "have another shape or dtype", other));
  if (!extra.empty() && !allow_extra) {
    faults.push_back(some(manifest.tensors.size(), "in it are not wanted", extra));
  }
  return join(faults, "; ");
}

TrainingState load_checkpoint(FileSystem& files, Communicator& comm, const fs::path& checkpoint,
                              std::span<const HeldPiece> into, const RestoreOptions& options) {
  Loaded loaded = try_load(files, comm, checkpoint, renamed(into, options), options.allow_extra);
  raise(loaded.failure);
  return std::move(loaded.state);
}

std::optional<TrainingState> load_newest(FileSystem& files, Communicator& comm, const fs::path& run,
                                         std::span<const HeldPiece> into,
                                         const RestoreOptions& options) {
  // Ranks need not see a folder alike at every moment: rank 0's list is everybody's.
  std::string list;
  const Failure listing = first_failure(comm, attempt([&] {
                                          if (comm.rank() != 0) return;
                                          for (const std::int64_t step : list_steps(files, run))
                                            list += step_folder_name(step) + "\n";
                                        }));
  raise(listing);
  list = text_of_first(comm, list);
  const std::vector<HeldPiece> wanted = renamed(into, options);
  std::string faults;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = list.find('\n', begin);
    const std::string name = list.substr(begin, end - begin);
    begin = end + 1;
    Loaded loaded = try_load(files, comm, run / name, wanted, options.allow_extra);
    if (!loaded.failure) return std::move(loaded.state);
    const bool damaged =
        loaded.failure.kind == FailureKind::kData || loaded.failure.kind == FailureKind::kStorage;
    if (!damaged) raise(loaded.failure);
    faults += "; " + loaded.failure.text;
    if (comm.rank() == 0) {
      log_warning(fmt::format("{} is damaged and is passed over for an older one: {}", name,
                              loaded.failure.text));
    }
  }
  if (faults.empty()) return std::nullopt;
  throw DataError(fmt::format("no checkpoint in {} is whole{}", run.string(), faults));
}

}  // namespace quatrain
