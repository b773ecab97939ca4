// SPDX-License-Identifier: Apache-2.0
// Each fused kernel beside the ATen operators it replaces, and the GEMM shapes of three models:
// ours (a team, one piece a thread), at::mm with its own threads, one thread's rate. Names end in
// /own or /aten; GFLOP/s and bytes a second are counters. Threads: OMP_NUM_THREADS or all cores.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "quatrain/kernels/expert_rows.h"
#include "quatrain/kernels/matmul.h"
#include "quatrain/kernels/memory.h"
#include "quatrain/kernels/pointwise.h"

namespace {

using benchmark::State;
namespace kernels = quatrain::kernels;

// --- GEMM -------------------------------------------------------------------------------------
struct Shape {
  const char* name;
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
};
constexpr Shape kShapes[] = {
    {"W1_qkv_forward", 2048, 1152, 384, false, true},
    {"W1_qkv_input", 2048, 384, 1152, false, false},
    {"W1_qkv_weight", 1152, 384, 2048, true, false},
    {"W1_down_forward", 2048, 384, 1536, false, true},
    {"W1_head_forward", 512, 8192, 384, false, true},
    {"W1_head_weight", 8192, 384, 512, true, false},
    {"W2_up_forward", 1024, 3072, 768, false, true},
    {"W2_up_weight", 3072, 768, 1024, true, false},
    {"W3_up_forward", 2048, 2816, 512, false, true},
    {"W3_up_input", 2048, 512, 2816, false, false},
    {"W3_up_weight", 2816, 512, 2048, true, false},
    {"decode", 1, 1152, 384, false, true},
};

void rate(State& state, double flops) {
  state.counters["GFLOP/s"] = benchmark::Counter(
      flops * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

struct Product {
  at::Tensor a, b, out;
  Product(const Shape& s, at::ScalarType dtype)
      : a((s.transpose_a ? at::randn({s.k, s.m}) : at::randn({s.m, s.k})).to(dtype)),
        b((s.transpose_b ? at::randn({s.n, s.k}) : at::randn({s.k, s.n})).to(dtype)),
        out(at::empty({s.m, s.n}, a.options())) {}
};

void gemm_own(State& state, const Shape& s, at::ScalarType dtype, int threads) {
  const int before = at::get_num_threads();
  if (threads > 0) at::set_num_threads(threads);
  Product p(s, dtype);
  for ([[maybe_unused]] auto step : state) {
    kernels::matmul_out(p.out, {p.a, s.transpose_a}, {p.b, s.transpose_b});
  }
  rate(state, 2.0 * static_cast<double>(s.m * s.n) * static_cast<double>(s.k));
  at::set_num_threads(before);
}

void gemm_aten(State& state, const Shape& s, at::ScalarType dtype) {
  Product p(s, dtype);
  const at::Tensor a = s.transpose_a ? p.a.t() : p.a;
  const at::Tensor b = s.transpose_b ? p.b.t() : p.b;
  for ([[maybe_unused]] auto step : state) at::mm_out(p.out, a, b);
  rate(state, 2.0 * static_cast<double>(s.m * s.n) * static_cast<double>(s.k));
}

// --- experts: 8 of 512 x 704, each with so many rows, and one product of all rows --------------
constexpr std::int64_t kExperts = 8;
struct ExpertProduct {
  const char* name;
  std::int64_t in, out;  // widths of rows
  bool transposed;       // matrices [out, in], as a forward pass has them
};
constexpr ExpertProduct kExpertProducts[] = {{"up", 512, 1408, true},
                                             {"down", 704, 512, true},
                                             {"up_input", 1408, 512, false},
                                             {"down_input", 512, 704, false}};

void experts(State& state, const ExpertProduct& p, bool grouped) {
  const std::int64_t rows = state.range(0), total = rows * kExperts;
  const at::Tensor x = at::randn({total, p.in});
  std::vector<at::Tensor> matrices;
  std::vector<std::int64_t> begin{0};
  for (std::int64_t e = 0; e < kExperts; ++e) {
    matrices.push_back(p.transposed ? at::randn({p.out, p.in}) : at::randn({p.in, p.out}));
    begin.push_back(begin.back() + rows);
  }
  at::Tensor out = at::empty({total, p.out});
  for ([[maybe_unused]] auto step : state) {
    if (grouped) {
      kernels::grouped_matmul_out(out, x, matrices, p.transposed, begin);
    } else {
      kernels::matmul_out(out, kernels::n(x), {matrices[0], p.transposed});
    }
  }
  rate(state, 2.0 * static_cast<double>(total * p.out * p.in));
}

// --- cross-entropy: a chunk of 512 rows of W1's and W3's vocabularies ---------------------------
void cross_entropy_own(State& state) {
  const at::Tensor start = at::randn({512, state.range(0)});
  const at::Tensor labels = at::randint(0, state.range(0), {512}, at::kLong);
  at::Tensor logits = at::empty_like(start);
  for ([[maybe_unused]] auto step : state) {
    logits.copy_(start);
    benchmark::DoNotOptimize(kernels::cross_entropy_(logits, labels, 1e-3, 0.0, true));
  }
}

void cross_entropy_aten(State& state) {
  const at::Tensor start = at::randn({512, state.range(0)});
  const at::Tensor labels = at::randint(0, state.range(0), {512}, at::kLong).unsqueeze(1);
  at::Tensor logits = at::empty_like(start);
  for ([[maybe_unused]] auto step : state) {
    logits.copy_(start);
    const at::Tensor log_p = logits.log_softmax(1);
    benchmark::DoNotOptimize(log_p.gather(1, labels).sum().neg());
    at::Tensor gradient = log_p.exp();
    gradient.scatter_add_(1, labels, at::full_like(labels, -1.0, gradient.options()));
    gradient.mul_(1e-3);
  }
}

// --- AdamW over 4 M parameters -----------------------------------------------------------------
constexpr std::int64_t kParameters = std::int64_t{4} << 20;

void adamw_own(State& state) {
  at::Tensor p = at::randn({kParameters});
  const at::Tensor g = at::randn({kParameters});
  at::Tensor m = at::zeros_like(p);
  at::Tensor v = at::zeros_like(p);
  std::int64_t count = 0;
  for ([[maybe_unused]] auto step : state) {
    kernels::adamw_(p, p, g, m, v,
                    {.lr = 1e-3,
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .eps = 1e-8,
                     .weight_decay = 0.1,
                     .step = ++count});
  }
  state.SetBytesProcessed(state.iterations() * kParameters * 28);
}

void adamw_aten(State& state) {
  at::Tensor p = at::randn({kParameters});
  const at::Tensor g = at::randn({kParameters});
  at::Tensor m = at::zeros_like(p);
  at::Tensor v = at::zeros_like(p);
  for ([[maybe_unused]] auto step : state) {
    p.mul_(1.0 - 1e-4);
    m.mul_(0.9).add_(g, 0.1);
    v.mul_(0.95).addcmul_(g, g, 0.05);
    p.addcdiv_(m, v.sqrt().add_(1e-8), -1e-3);
  }
  state.SetBytesProcessed(state.iterations() * kParameters * 28);
}

// --- reductions and embedding --------------------------------------------------------------------
void sum_squares_own(State& state) {
  const at::Tensor x = at::randn({kParameters});
  for ([[maybe_unused]] auto step : state) benchmark::DoNotOptimize(kernels::sum_squares(x));
  state.SetBytesProcessed(state.iterations() * kParameters * 4);
}
void sum_squares_aten(State& state) {
  const at::Tensor x = at::randn({kParameters});
  for ([[maybe_unused]] auto step : state) {
    benchmark::DoNotOptimize(x.to(at::kDouble).square().sum().item().toDouble());
  }
  state.SetBytesProcessed(state.iterations() * kParameters * 4);
}

void add_rows_own(State& state) {
  const at::Tensor x = at::randn({2048, 1536});
  at::Tensor out = at::zeros({1536});
  for ([[maybe_unused]] auto step : state) kernels::add_rows(out, x);
}
void add_rows_aten(State& state) {
  const at::Tensor x = at::randn({2048, 1536});
  at::Tensor out = at::zeros({1536});
  for ([[maybe_unused]] auto step : state) out.add_(x.sum(0));
}

void embedding_gradient_own(State& state) {
  const at::Tensor ids = at::randint(0, 8192, {2048}, at::kLong);
  const at::Tensor dy = at::randn({2048, 384});
  at::Tensor grad = at::zeros({8192, 384});
  for ([[maybe_unused]] auto step : state) {
    kernels::embedding_add_grad(grad, ids, dy, kernels::whole_vocab(grad));
  }
}
void embedding_gradient_aten(State& state) {
  const at::Tensor ids = at::randint(0, 8192, {2048}, at::kLong);
  const at::Tensor dy = at::randn({2048, 384});
  at::Tensor grad = at::zeros({8192, 384});
  for ([[maybe_unused]] auto step : state) grad.index_add_(0, ids, dy);
}

// --- the allocator: torch's own first, then the counting one, which cannot be taken out again
// -----
void make_tensor(State& state, bool counting) {
  if (counting) quatrain::install_counting_allocator();
  quatrain::MemoryOwner owner;
  const quatrain::ScopedMemoryOwner scope(&owner);
  for ([[maybe_unused]] auto step : state) {
    benchmark::DoNotOptimize(at::empty({state.range(0)}));
  }
}
void make_and_fill(State& state, bool counting) {
  if (counting) quatrain::install_counting_allocator();
  quatrain::MemoryOwner owner;
  const quatrain::ScopedMemoryOwner scope(&owner);
  for ([[maybe_unused]] auto step : state) {
    benchmark::DoNotOptimize(at::zeros({state.range(0)}));
  }
}

template <class F>
void add(const std::string& name, F&& f) {
  benchmark::RegisterBenchmark(name.c_str(), f)->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void add_gemms() {
  for (const Shape& s : kShapes) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const std::string name =
          std::string("gemm/") + s.name + (dtype == at::kFloat ? "/float32" : "/bf16");
      add(name + "/own", [s, dtype](State& state) { gemm_own(state, s, dtype, 0); });
      add(name + "/aten", [s, dtype](State& state) { gemm_aten(state, s, dtype); });
      add(name + "/one_thread", [s, dtype](State& state) { gemm_own(state, s, dtype, 1); });
    }
  }
}

void add_kernels() {
  for (const std::int64_t vocabulary : {8192, 16384}) {
    const std::string name = "cross_entropy/" + std::to_string(vocabulary);
    const auto with = [vocabulary](benchmark::internal::Benchmark* b) {
      b->Arg(vocabulary)->UseRealTime()->Unit(benchmark::kMicrosecond);
    };
    with(benchmark::RegisterBenchmark((name + "/own").c_str(), cross_entropy_own));
    with(benchmark::RegisterBenchmark((name + "/aten").c_str(), cross_entropy_aten));
  }
  for (const ExpertProduct& p : kExpertProducts) {
    for (const bool grouped : {true, false}) {
      const std::string name = std::string("experts/") + p.name + (grouped ? "/grouped" : "/dense");
      benchmark::RegisterBenchmark(name.c_str(), experts, p, grouped)
          ->ArgsProduct({{16, 32, 64, 128, 256, 1024}})
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
  add("adamw/own", adamw_own);
  add("adamw/aten", adamw_aten);
  add("sum_squares/own", sum_squares_own);
  add("sum_squares/aten", sum_squares_aten);
  add("add_rows/own", add_rows_own);
  add("add_rows/aten", add_rows_aten);
  add("embedding_gradient/own", embedding_gradient_own);
  add("embedding_gradient/aten", embedding_gradient_aten);
}

void add_allocator(bool counting) {
  for (const std::int64_t floats : {16, 4096, 1 << 20, 8 << 20}) {
    const std::string size = std::to_string(4 * floats) + (counting ? "_bytes/own" : "_bytes/aten");
    benchmark::RegisterBenchmark(("empty/" + size).c_str(), make_tensor, counting)->Arg(floats);
    benchmark::RegisterBenchmark(("zeros/" + size).c_str(), make_and_fill, counting)->Arg(floats);
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  add_allocator(false);
  add_allocator(true);
  add_kernels();
  add_gemms();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
