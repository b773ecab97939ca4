// SPDX-License-Identifier: Apache-2.0
// What a layer keeps of a micro-batch, with exact books: distinct storages, each counted whole.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "quatrain/kernels/memory.h"
#include "quatrain/nn/check.h"
#include "quatrain/nn/layer.h"

namespace quatrain {
namespace {

struct Held {
  std::int64_t bytes;
  Until until;
};
using Storages = std::unordered_map<const c10::StorageImpl*, Held>;

void collect(const Stash& stash, Storages& storages) {
  for (const Saved& saved : stash.saved()) {
    const c10::Storage& storage = saved.tensor.storage();
    const auto bytes = static_cast<std::int64_t>(storage.nbytes());
    const auto [held, fresh] =
        storages.try_emplace(storage.unsafeGetStorageImpl(), Held{bytes, saved.until});
    if (!fresh && saved.until == Until::kWeight) held->second.until = Until::kWeight;
  }
  for (const Stash& child : stash.children()) collect(child, storages);
}

auto find(std::vector<Saved>& saved, std::string_view what) {
  return std::find_if(saved.begin(), saved.end(), [&](const Saved& s) { return s.what == what; });
}

}  // namespace

Stash Stash::discarding() {
  Stash stash;
  stash.discards_ = true;
  return stash;
}

void Stash::save(at::Tensor tensor, Until until, std::string_view what) {
  if (discards_) return;
  CHECK(tensor.defined(), "row {} is undefined", what);
  CHECK(!has(what), "row {} is there already", what);
  retag(tensor, MemoryCategory::kActivations);
  saved_.push_back({std::move(tensor), until, what});
}

const at::Tensor& Stash::at(std::string_view what) const {
  for (const Saved& saved : saved_) {
    if (saved.what == what) return saved.tensor;
  }
  fail_check(__FILE__, __LINE__, "has(what)", fmt::format("the stash has no row {}", what));
}

bool Stash::has(std::string_view what) const {
  return std::any_of(saved_.begin(), saved_.end(),
                     [&](const Saved& saved) { return saved.what == what; });
}

at::Tensor Stash::take(std::string_view what) {
  const auto found = find(saved_, what);
  CHECK(found != saved_.end(), "the stash has no row {}", what);
  at::Tensor tensor = std::move(found->tensor);
  saved_.erase(found);
  return tensor;
}

void Stash::drop_input_half() {
  std::erase_if(saved_, [](const Saved& saved) { return saved.until == Until::kInput; });
  for (Stash& child : children_) child.drop_input_half();
}

void Stash::clear() {
  saved_.clear();
  children_.clear();
}

bool Stash::empty() const {
  return saved_.empty() && std::all_of(children_.begin(), children_.end(),
                                       [](const Stash& child) { return child.empty(); });
}

Stash& Stash::child(std::size_t index) {
  if (index >= children_.size()) {
    children_.resize(index + 1, discards_ ? discarding() : Stash());
  }
  return children_[index];
}

std::int64_t Stash::bytes() const {
  Storages storages;
  collect(*this, storages);
  std::int64_t sum = 0;
  for (const auto& [storage, held] : storages) sum += held.bytes;
  return sum;
}

std::int64_t Stash::bytes(Until until) const {
  Storages storages;
  collect(*this, storages);
  std::int64_t sum = 0;
  for (const auto& [storage, held] : storages) {
    if (held.until == until) sum += held.bytes;
  }
  return sum;
}

}  // namespace quatrain
