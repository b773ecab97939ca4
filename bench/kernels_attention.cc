// SPDX-License-Identifier: Apache-2.0
// Attention against ATen's flash kernel, in GFLOP/s of visible pairs: forward 2 (d + dv) FLOPs a
// pair and head, backward twice that. Arguments: batch, heads, kv heads, positions, head dim.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include <cmath>
#include <tuple>

#include "quatrain/kernels/attention.h"
#include "quatrain/kernels/memory.h"

namespace {

using quatrain::kernels::AttentionMask;
using quatrain::kernels::AttentionOut;

struct Inputs {
  at::Tensor q, k, v, dout;
  double scale, pair_flops;
};

// Views of one fused buffer, as the attention layer has them.
Inputs make(const benchmark::State& state) {
  const auto B = state.range(0), H = state.range(1), K = state.range(2), T = state.range(3),
             d = state.range(4);
  const at::Tensor fused = at::randn({B, T, H + 2 * K, d}, at::kFloat);
  const std::int64_t pairs = quatrain::kernels::visible_pairs(B, T, T, {});
  return {fused.narrow(2, 0, H),
          fused.narrow(2, H, K),
          fused.narrow(2, H + K, K),
          at::randn({B, T, H, d}, at::kFloat),
          1.0 / std::sqrt(static_cast<double>(d)),
          static_cast<double>(pairs * H * 4 * d)};
}

void report(benchmark::State& state, double flops) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void own_forward(benchmark::State& state) {
  const Inputs in = make(state);
  for (auto _ : state)
    benchmark::DoNotOptimize(quatrain::kernels::attention(in.q, in.k, in.v, in.scale, {}));
  report(state, in.pair_flops);
}

void own_backward(benchmark::State& state) {
  const Inputs in = make(state);
  const AttentionOut f = quatrain::kernels::attention(in.q, in.k, in.v, in.scale, {});
  at::Tensor dq = at::empty_like(in.q), dk = at::empty_like(in.k), dv = at::empty_like(in.v);
  for (auto _ : state)
    quatrain::kernels::attention_backward(in.dout, in.q, in.k, in.v, f, in.scale, {}, dq, dk, dv);
  report(state, 2 * in.pair_flops);
}

auto aten_flash(const Inputs& in) {
  return at::_scaled_dot_product_flash_attention_for_cpu(
      in.q.transpose(1, 2), in.k.transpose(1, 2), in.v.transpose(1, 2), 0.0, true, {}, in.scale);
}

void aten_forward(benchmark::State& state) {
  const Inputs in = make(state);
  for (auto _ : state) benchmark::DoNotOptimize(aten_flash(in));
  report(state, in.pair_flops);
}

void aten_backward(benchmark::State& state) {
  const Inputs in = make(state);
  const auto [out, lse] = aten_flash(in);
  for (auto _ : state)
    benchmark::DoNotOptimize(at::_scaled_dot_product_flash_attention_for_cpu_backward(
        in.dout.transpose(1, 2), in.q.transpose(1, 2), in.k.transpose(1, 2), in.v.transpose(1, 2),
        out, lse, 0.0, true, {}, in.scale));
  report(state, 2 * in.pair_flops);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({8, 6, 6, 256, 64})->Args({4, 12, 12, 256, 64})->Args({4, 8, 2, 512, 64});
  b->UseRealTime()->Unit(benchmark::kMillisecond)->MinTime(0.3);
}
BENCHMARK(own_forward)->Apply(shapes);
BENCHMARK(aten_forward)->Apply(shapes);
BENCHMARK(own_backward)->Apply(shapes);
BENCHMARK(aten_backward)->Apply(shapes);

}  // namespace

int main(int argc, char** argv) {
  quatrain::install_counting_allocator();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
