// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file: who may be in it, and that the tensors cover the buffer
// from its first byte to its last, each byte once.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <set>
#include <utility>

#include "quatrain/base/error.h"
#include "quatrain/base/rng.h"
#include "quatrain/checkpoint/json_scanner.h"
#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/checkpoint/safetensors_dtype.h"
#include "quatrain/checkpoint/safetensors_index.h"

namespace quatrain {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // decimal, as the reference
// An entry takes at least this many bytes of JSON: what a header's length lets us reserve.
constexpr std::size_t kShortestEntry = 50;

bool has_control_character(std::string_view name) {
  return std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7F;
  });
}

void read_metadata(JsonScanner& json, std::map<std::string, std::string>& metadata) {
  json.open_object();
  std::string key;
  std::string value;
  while (json.next_key(key)) {
    json.string(value);
    if (!metadata.emplace(key, value).second) {
      json.fail(fmt::format("__metadata__ holds \"{}\" twice", key));
    }
  }
}

void read_shape(JsonScanner& json, std::vector<std::int64_t>& shape) {
  json.open_array();
  while (json.next_element()) shape.push_back(json.integer());
}

void read_offsets(JsonScanner& json, TensorEntry& entry) {
  json.open_array();
  const bool first = json.next_element();
  if (first) entry.begin = json.integer();
  const bool second = first && json.next_element();
  if (second) entry.end = json.integer();
  if (!second || json.next_element()) json.fail("data_offsets needs exactly two integers");
}

// The members of one tensor's object, each at most once, none missing.
class EntryReader {
 public:
  EntryReader(JsonScanner& json, bool allow_unknown) : json_(json), allow_unknown_(allow_unknown) {}

  void read(TensorEntry& entry) {
    json_.open_object();
    seen_.fill(false);
    others_.clear();
    while (json_.next_key(field_)) {
      const auto known = std::find(kFields.begin(), kFields.end(), field_);
      if (known == kFields.end()) {
        read_unknown(entry);
      } else {
        const auto which = static_cast<std::size_t>(known - kFields.begin());
        if (seen_[which]) refuse_repeated(entry);
        seen_[which] = true;
        read_field(which, entry);
      }
    }
    const auto absent = std::find(seen_.begin(), seen_.end(), false);
    if (absent != seen_.end()) {
      json_.fail(fmt::format("tensor \"{}\" has no \"{}\"", entry.name,
                             kFields[static_cast<std::size_t>(absent - seen_.begin())]));
    }
  }

 private:
  static constexpr std::array<std::string_view, 3> kFields{"dtype", "shape", "data_offsets"};

  void read_field(std::size_t which, TensorEntry& entry) {
    if (which == 0) {
      json_.string(entry.dtype);
      if (find_safetensors_dtype(entry.dtype) == nullptr) {
        json_.fail(fmt::format("tensor \"{}\" has unknown dtype \"{}\"", entry.name, entry.dtype));
      }
    } else if (which == 1) {
      read_shape(json_, entry.shape);
    } else {
      read_offsets(json_, entry);
    }
  }

  void read_unknown(const TensorEntry& entry) {
    if (!allow_unknown_) {
      json_.fail(fmt::format("tensor \"{}\" has unknown field \"{}\"", entry.name, field_));
    }
    if (!others_.insert(field_).second) refuse_repeated(entry);
    json_.skip_value();
  }

  [[noreturn]] void refuse_repeated(const TensorEntry& entry) const {
    json_.fail(fmt::format("tensor \"{}\" has \"{}\" twice", entry.name, field_));
  }

  JsonScanner& json_;
  bool allow_unknown_;
  std::string field_;
  std::array<bool, 3> seen_{};  // of kFields
  std::set<std::string> others_;
};

// a * b in 63 bits, or -1.
std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? -1 : result;
}

// Bytes of the entry's elements. Overflow is judged without zeros, so in every order of the dims.
std::int64_t size_of_entry(const TensorEntry& entry) {
  std::int64_t bits = find_safetensors_dtype(entry.dtype)->bits;
  bool empty = false;
  for (std::int64_t dim : entry.shape) {
    empty = empty || dim == 0;
    bits = product(bits, std::max<std::int64_t>(dim, 1));
    if (bits < 0) {
      throw DataError(fmt::format("shape of tensor \"{}\" overflows 63 bits", entry.name));
    }
  }
  if (empty) return 0;
  if (bits % 8 != 0) {
    throw DataError(fmt::format("tensor \"{}\" ends inside a byte: {} bits", entry.name, bits));
  }
  return bits / 8;
}

void check_coverage(const std::vector<TensorEntry>& tensors, std::int64_t buffer_bytes) {
  std::int64_t covered = 0;
  for (const TensorEntry& entry : tensors) {
    if (entry.end < entry.begin || entry.begin != covered) {
      throw DataError(
          fmt::format("tensor \"{}\" at [{}, {}) does not begin where the one before it ends, {}",
                      entry.name, entry.begin, entry.end, covered));
    }
    const std::int64_t size = size_of_entry(entry);
    if (size != entry.end - entry.begin) {
      throw DataError(fmt::format("tensor \"{}\" needs {} bytes and its data_offsets give {}",
                                  entry.name, size, entry.end - entry.begin));
    }
    covered = entry.end;
  }
  if (covered != buffer_bytes) {
    throw DataError(fmt::format("tensors end at byte {} of the buffer, which has {} ({})", covered,
                                buffer_bytes, covered > buffer_bytes ? "truncated" : "extra"));
  }
}

// Bytes of the header, checked against the file's size.
std::size_t header_bytes(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    throw DataError(fmt::format("{} bytes, too short for a header", file.size()));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    throw DataError(
        fmt::format("header of {} bytes, above the format's limit of {}", length, kMaxHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    throw DataError(
        fmt::format("header of {} bytes in a file of {} (truncated)", length, file.size()));
  }
  return static_cast<std::size_t>(length);
}

void check_name(const JsonScanner& json, const std::string& name) {
  if (name.empty()) json.fail("empty tensor name");
  if (has_control_character(name)) json.fail("control character in a tensor name");
}

}  // namespace

// Slots go to buckets by the first bits of their hash, about one to a bucket, and are sorted there:
// a third of the time of sorting them all at once.
NameIndex::NameIndex(const std::vector<TensorEntry>& tensors) : slots_(tensors.size()) {
  if (tensors.empty()) return;
  std::vector<std::uint64_t> hashes;
  hashes.reserve(tensors.size());
  for (const TensorEntry& entry : tensors) hashes.push_back(stable_hash(entry.name));
  const auto bits = static_cast<int>(std::bit_width(tensors.size()));
  const auto bucket = [bits](std::uint64_t hash) {
    return static_cast<std::size_t>(hash >> (64 - bits));
  };
  std::vector<std::size_t> place((std::size_t{1} << bits) + 1);  // of a bucket's next slot
  for (const std::uint64_t hash : hashes) ++place[bucket(hash) + 1];
  std::partial_sum(place.begin(), place.end(), place.begin());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    slots_[place[bucket(hashes[i])]++] = {hashes[i], i};
  }
  const auto before = [&tensors](const Slot& a, const Slot& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    return tensors[a.place].name < tensors[b.place].name;
  };
  auto begin = slots_.begin();
  for (const std::size_t filled : place) {
    const auto end = slots_.begin() + static_cast<std::ptrdiff_t>(filled);
    std::sort(begin, end, before);
    begin = end;
  }
}

const TensorEntry* NameIndex::find(const std::vector<TensorEntry>& tensors,
                                   std::string_view name) const {
  const std::uint64_t hash = stable_hash(name);
  auto slot = std::lower_bound(slots_.begin(), slots_.end(), hash,
                               [](const Slot& s, std::uint64_t h) { return s.hash < h; });
  for (; slot != slots_.end() && slot->hash == hash; ++slot) {
    if (tensors[slot->place].name == name) return &tensors[slot->place];
  }
  return nullptr;
}

const TensorEntry* NameIndex::repeated(const std::vector<TensorEntry>& tensors) const {
  auto equal = [&tensors](const Slot& a, const Slot& b) {
    return a.hash == b.hash && tensors[a.place].name == tensors[b.place].name;
  };
  auto slot = std::adjacent_find(slots_.begin(), slots_.end(), equal);
  return slot == slots_.end() ? nullptr : &tensors[slot->place];
}

namespace {

void read_header_object(JsonScanner& json, bool allow_unknown_fields, SafetensorsHeader& header) {
  EntryReader entry_reader(json, allow_unknown_fields);
  bool has_metadata = false;
  std::string name;
  json.open_object();
  while (json.next_key(name)) {
    if (name == "__metadata__") {
      if (has_metadata) json.fail("__metadata__ twice");
      has_metadata = true;
      read_metadata(json, header.metadata);
      continue;
    }
    check_name(json, name);
    TensorEntry& entry = header.tensors.emplace_back();
    entry.name = name;
    entry_reader.read(entry);
  }
  json.end();
}

IndexedHeader parse(std::string_view json_text, std::int64_t buffer_bytes,
                    bool allow_unknown_fields) {
  SafetensorsHeader header;
  header.tensors.reserve(json_text.size() / kShortestEntry);
  JsonScanner json(json_text);
  read_header_object(json, allow_unknown_fields, header);
  auto before = [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  };
  if (!std::is_sorted(header.tensors.begin(), header.tensors.end(), before)) {
    std::sort(header.tensors.begin(), header.tensors.end(), before);
  }
  check_coverage(header.tensors, buffer_bytes);
  NameIndex index(header.tensors);
  if (const TensorEntry* twice = index.repeated(header.tensors); twice != nullptr) {
    throw DataError(fmt::format("tensor \"{}\" is listed twice", twice->name));
  }
  return {std::move(header), std::move(index)};
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json_text, std::int64_t buffer_bytes,
                                           bool allow_unknown_fields) {
  return parse(json_text, buffer_bytes, allow_unknown_fields).header;
}

IndexedHeader read_indexed_header(std::span<const std::byte> file, bool allow_unknown_fields) {
  const std::size_t length = header_bytes(file);
  const auto* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  const std::size_t offset = kLengthBytes + length;
  IndexedHeader result =
      parse({text, length}, static_cast<std::int64_t>(file.size() - offset), allow_unknown_fields);
  result.header.buffer_offset = static_cast<std::int64_t>(offset);
  return result;
}

SafetensorsHeader read_safetensors_header(std::span<const std::byte> file,
                                          bool allow_unknown_fields) {
  return read_indexed_header(file, allow_unknown_fields).header;
}

}  // namespace quatrain
