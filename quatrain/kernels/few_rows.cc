// SPDX-License-Identifier: Apache-2.0
#include "quatrain/kernels/few_rows.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "quatrain/kernels/block_product.h"
#include "quatrain/kernels/check.h"
#include "quatrain/kernels/transpose.h"

namespace quatrain::kernels {
namespace {

constexpr std::int64_t kLanes = simd::kLanes<float>;
constexpr std::int64_t kLine = 16;  // elements of a cache line
// A register tile of the sums.
constexpr std::int64_t kTileRows = 8;
constexpr std::int64_t kTileColumns = 2 * kLanes;
// Output columns between two transpositions: whole tiles, whole registers.
constexpr std::int64_t kStrip = 48;
static_assert(kStrip % kTileRows == 0 && kStrip % kLanes == 0);
// A packed panel of the matrix lies in the first cache, one of rows in the second.
constexpr std::int64_t kPanelInner = 256;
constexpr std::int64_t kPanelElements = 128 * 1024;

// This thread's packed operand; kept, since fresh pages cost a fault each.
float* buffer(std::int64_t elements) {
  struct alignas(64) Line {
    float x[16];
  };
  thread_local std::vector<Line> lines;
  const auto count = static_cast<std::size_t>((elements + 15) / 16);
  if (lines.size() < count) lines.resize(count);
  return lines.data()->x;
}

// The transpose of sums [columns, padded] to out's `rows`.
void unpack(const float* sums, std::int64_t padded, std::int64_t rows, std::int64_t columns,
            float* out, std::int64_t out_stride) {
  for (std::int64_t r = 0; r < rows; r += kLanes)
    simd::for_each_vector<float>(columns, [&](std::int64_t c, const auto& io) {
      simd::Vec<float> square[kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i) square[i] = simd::load(sums + (c + i) * padded + r);
      simd::transpose<float>(square);
      for (std::int64_t i = 0; i < std::min(kLanes, rows - r); ++i)
        io.store(out + (r + i) * out_stride + c, square[i]);
    });
}

// What is asked of memory while a tile is made, for whatever comes next: pieces of rows that are
// too short for the processor to see that the rest will be read.
class Ahead {
 public:
  Ahead() = default;  // nothing
  // At each call `rows` rows of `lines` cache lines; then on by `advance` elements.
  Ahead(const float* start, std::int64_t stride, std::int64_t rows, std::int64_t lines,
        std::int64_t advance)
      : next_(start), stride_(stride), rows_(rows), lines_(lines), advance_(advance) {}
  void fetch() {
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t l = 0; l < lines_; ++l)
        __builtin_prefetch(next_ + r * stride_ + l * kLine, 0, 2);
    next_ += advance_;
  }

 private:
  const float* next_ = nullptr;
  std::int64_t stride_ = 0, rows_ = 0, lines_ = 0, advance_ = 0;
};

using Block = simd::RowBlock<const float>;
using Sums = simd::RowBlock<float>;  // of the output, or of its transpose

// sums [kRows, kWide registers] (+)= left [kRows, inner] right [inner, kWide registers]; kCopies:
// right, once read, is written to `copy`, its registers side by side.
template <int kRows, int kWide, bool kCopies>
void tile(Block left, Block right, Sums sums, std::int64_t inner, bool add, Ahead& ahead,
          float* copy) {
  simd::Vec<float> sum[kRows][kWide];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kWide; ++v)
      sum[r][v] =
          add ? simd::load(sums.data + r * sums.row_stride + v * kLanes) : simd::Vec<float>{};
  for (std::int64_t begin = 0; begin < inner; begin += kLine) {
    ahead.fetch();
    const std::int64_t end = std::min(inner, begin + kLine);
    for (std::int64_t k = begin; k < end; ++k) {
      simd::Vec<float> row[kWide];
#pragma GCC unroll 2
      for (int v = 0; v < kWide; ++v) {
        row[v] = simd::load(right.data + k * right.row_stride + v * kLanes);
        if constexpr (kCopies) simd::store(copy + (k * kWide + v) * kLanes, row[v]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const simd::Vec<float> scalar = simd::splat(left.data[r * left.row_stride + k]);
#pragma GCC unroll 2
        for (int v = 0; v < kWide; ++v) sum[r][v] = simd::fused(scalar, row[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kWide; ++v)
      simd::store(sums.data + r * sums.row_stride + v * kLanes, sum[r][v]);
}

using Tile = void (*)(Block, Block, Sums, std::int64_t, bool, Ahead&, float*);
template <int kWide, bool kCopies>
constexpr Tile kTiles[kTileRows] = {tile<1, kWide, kCopies>, tile<2, kWide, kCopies>,
                                    tile<3, kWide, kCopies>, tile<4, kWide, kCopies>,
                                    tile<5, kWide, kCopies>, tile<6, kWide, kCopies>,
                                    tile<7, kWide, kCopies>, tile<8, kWide, kCopies>};
// Of so many rows and, in whole registers, columns.
Tile tile_of(std::int64_t rows, std::int64_t columns) {
  return (columns > kLanes ? kTiles<2, false> : kTiles<1, false>)[rows - 1];
}
Tile copying_tile_of(std::int64_t rows, std::int64_t columns) {
  return (columns > kLanes ? kTiles<2, true> : kTiles<1, true>)[rows - 1];
}

// b [n, k]: the output's transpose, from the packed transpose of a's rows; b's next rows are
// fetched under the first tile of these.
void by_dots(GemmSize size, GemmOperand<float> a, GemmOperand<float> b, float* out,
             std::int64_t out_stride) {
  alignas(64) float sums[kStrip * kFewRows];
  const std::int64_t padded = simd::round_up(size.m, kLanes);
  float* const packed = buffer(simd::round_up(size.k, kLanes) * padded);
  pack_transposed<float>(a.start, a.stride, size.m, size.k, 1.0F, packed);
  for (std::int64_t n = 0; n < size.n; n += kTileRows) {
    const std::int64_t columns = std::min(kTileRows, size.n - n);
    const float* const rows = b.start + n * b.stride;
    const bool last = n + 2 * kTileRows > size.n;
    for (std::int64_t m = 0; m < padded; m += kTileColumns) {
      Ahead next;
      if (m == 0 && !last) next = {rows + kTileRows * b.stride, b.stride, kTileRows, 1, kLine};
      tile_of(columns, padded - m)({rows, b.stride}, {packed + m, padded},
                                   {sums + n % kStrip * padded + m, padded}, size.k, false, next,
                                   nullptr);
    }
    const std::int64_t begin = n / kStrip * kStrip, end = n + columns;
    if (end - begin == kStrip || end == size.n)
      unpack(sums, padded, size.m, end - begin, out + begin, out_stride);
  }
}

// The part of b [k, n] that is multiplied at once.
struct Panel {
  std::int64_t k, n, depth, columns;
};
Panel panel_at(GemmSize size, std::int64_t k, std::int64_t n) {
  return {k, n, std::min(kPanelInner, size.k - k), std::min(kTileColumns, size.n - n)};
}
Panel panel_after(GemmSize size, const Panel& panel) {
  const bool same_columns = panel.k + kPanelInner < size.k;
  return panel_at(size, same_columns ? panel.k + kPanelInner : 0,
                  same_columns ? panel.n : panel.n + kTileColumns);
}

// Panel `next` of b, under the tiles of one.
Ahead fetch_under(GemmSize size, const Panel& panel, GemmOperand<float> b, const Panel& next) {
  const std::int64_t calls =
      simd::round_up(size.m, kTileRows) / kTileRows * (simd::round_up(panel.depth, kLine) / kLine);
  const std::int64_t rows = (next.depth + calls - 1) / calls;
  if (next.columns <= 0) return {};
  return {b.start + next.k * b.stride + next.n, b.stride, rows, kTileColumns / kLine,
          rows * b.stride};
}

// Columns behind the last whole register, padded with zeros.
void pack(GemmOperand<float> b, const Panel& panel, std::int64_t padded, float* packed) {
  for (std::int64_t k = 0; k < panel.depth; ++k)
    simd::for_each_vector<float>(panel.columns, [&](std::int64_t c, const auto& io) {
      simd::store(packed + k * padded + c,
                  io.load(b.start + (panel.k + k) * b.stride + panel.n + c));
    });
}

// b [k, n]: each panel is packed by the first tile that reads it.
void by_sums(GemmSize size, GemmOperand<float> a, GemmOperand<float> b, float* out,
             std::int64_t out_stride) {
  alignas(64) float packed[kPanelInner * kTileColumns];
  alignas(64) float sums[kFewRows * kTileColumns];
  for (Panel panel = panel_at(size, 0, 0); panel.columns > 0; panel = panel_after(size, panel)) {
    const std::int64_t padded = simd::round_up(panel.columns, kLanes);
    const bool whole = padded == panel.columns;
    const Sums to = whole ? Sums{out + panel.n, out_stride} : Sums{sums, padded};
    if (!whole) pack(b, panel, padded, packed);
    Ahead ahead = fetch_under(size, panel, b, panel_after(size, panel));
    for (std::int64_t m = 0; m < size.m; m += kTileRows) {
      const std::int64_t rows = std::min(kTileRows, size.m - m);
      const bool copies = whole && m == 0;
      const Block left{a.start + m * a.stride + panel.k, a.stride};
      const Block right =
          copies ? Block{b.start + panel.k * b.stride + panel.n, b.stride} : Block{packed, padded};
      (copies ? copying_tile_of : tile_of)(rows, padded)(
          left, right, {to.data + m * to.row_stride, to.row_stride}, panel.depth, panel.k > 0,
          ahead, packed);
    }
    if (whole || panel.k + panel.depth < size.k) continue;
    for (std::int64_t m = 0; m < size.m; ++m)
      std::copy_n(sums + m * padded, panel.columns, out + m * out_stride + panel.n);
  }
}

}  // namespace

void few_rows_product(GemmSize size, GemmOperand<float> a, GemmOperand<float> b, float* out,
                      std::int64_t out_stride) {
  CHECK(size.m >= 1 && size.m <= kFewRows && size.k >= 1 && !a.transposed,
        "{} rows of {}{} for a product of few", size.m, size.k,
        a.transposed ? ", transposed," : "");
  if (!b.transposed) return by_sums(size, a, b, out, out_stride);
  const std::int64_t panel = std::max<std::int64_t>(kPanelElements / size.k, kTileColumns);
  for (std::int64_t m = 0; m < size.m; m += panel) {
    const std::int64_t rows = std::min(panel, size.m - m);
    by_dots({rows, size.n, size.k}, {a.start + m * a.stride, a.stride}, b, out + m * out_stride,
            out_stride);
  }
}

}  // namespace quatrain::kernels
