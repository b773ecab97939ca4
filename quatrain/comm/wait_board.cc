// SPDX-License-Identifier: Apache-2.0
// Text published without a lock.
#include "quatrain/comm/wait_board.h"

#include <algorithm>
#include <cstring>

namespace quatrain {
namespace {

// Writes what fits into the span and returns the rest of it.
std::span<char> put(std::span<char> out, std::string_view text) {
  const std::size_t n = std::min(text.size(), out.size());
  std::memcpy(out.data(), text.data(), n);
  return out.subspan(n);
}

// `label` and the line, or `nothing` where there is no line.
std::span<char> put(std::span<char> out, std::string_view label, const BoardLine& line,
                    std::string_view nothing) {
  std::array<char, BoardLine::kBytes> text;
  const std::size_t n = line.read(text);
  return n == 0 ? put(out, nothing) : put(put(out, label), {text.data(), n});
}

constexpr std::size_t kLabels = 64;  // both labels fit

template <class Write>
std::string text_of(Write write) {
  std::string text(2 * BoardLine::kBytes + kLabels, '\0');
  const std::span<char> rest = write(std::span<char>(text));
  text.resize(text.size() - rest.size());
  return text;
}

std::span<char> put_waits(std::span<char> out, const BoardLine& line) {
  return put(out, "waits in ", line, "waits for nobody");
}

std::span<char> put_finished(std::span<char> out, const BoardLine& line) {
  return put(out, "last finished ", line, "has finished nothing");
}

}  // namespace

void BoardLine::write(std::string_view text) noexcept {
  const std::uint32_t next = generation_.load(std::memory_order_relaxed) + 1;
  Slot& slot = slots_[next % 2];
  const std::size_t length = std::min(text.size(), kBytes);
  for (std::size_t at = 0; at < length; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, length - at));
    slot[at / 8].store(word, std::memory_order_release);
  }
  slot.back().store(length, std::memory_order_release);
  generation_.store(next, std::memory_order_release);
}

std::size_t BoardLine::read(std::span<char> out) const noexcept {
  // Why a bound: a writer faster than its reader would otherwise keep a signal handler for ever.
  for (int tries = 0; tries < 100; ++tries) {
    const std::uint32_t before = generation_.load(std::memory_order_acquire);
    const Slot& slot = slots_[before % 2];
    std::array<std::uint64_t, kBytes / 8> words;
    const std::size_t length = slot.back().load(std::memory_order_acquire);
    for (std::size_t i = 0; i * 8 < length; ++i) words[i] = slot[i].load(std::memory_order_acquire);
    // The writer returns to this slot only after it has published the other one.
    if (generation_.load(std::memory_order_relaxed) != before) continue;
    const std::size_t copied = std::min(length, out.size());
    std::memcpy(out.data(), words.data(), copied);
    return copied;
  }
  return 0;
}

std::size_t WaitBoard::read(std::span<char> out) const noexcept {
  return out.size() - put_finished(put(put_waits(out, waits_), "; "), finished_).size();
}

std::string WaitBoard::to_string() const {
  return text_of([this](std::span<char> out) { return out.subspan(read(out)); });
}

std::string WaitBoard::last_finished() const {
  return text_of([this](std::span<char> out) { return put_finished(out, finished_); });
}

}  // namespace quatrain
