// small_bench [--case gdn|norm|reciprocal]: the forms of the small operations at the 27B's shapes.
// First the bits: the delta rule's forms against each other (any size, one block a head, two blocks
// a head; M = 1..8 and 19, outputs and state), the norm against the host, the reciprocal of silu
// against the division, for every operand. Then the time of one launch among 16 with other state
// each, launches overlapping as in a step and one after the other.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "arith/sum.h"
#include "kernels/gdn.cuh"
#include "kernels/gdn_any.cuh"
#include "kernels/quantize.cuh"
#include "kernels/rms_norm.cuh"
#include "kernels/synth.cuh"
#include "tools/bench.h"

using namespace vcuda;
using namespace vcuda::gpu;

namespace bench {

constexpr int kLaunches = 16, kMost = 19;  // rows of the largest check
const int kChecked[] = {1, 2, 3, 4, 5, 6, 7, 8, kMost}, kTimed[] = {1, 2, 4, 8};

// Microseconds of one of `launches` launches in a graph; launch(i) issues the i-th.
template <class F>
double graph_us(cudaStream_t stream, int launches, const F& launch) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < launches; ++i) launch(i);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  const double us =
      median_us(stream, 7, [&] { check(cudaGraphLaunch(exec, stream), "launch"); }) / launches;
  cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
  return us;
}

struct Bench {
  Stream stream, serial;
  Arena arena;
  double rate;

  float* floats(size_t n, float offset = 0.0f, float scale = 1.0f) {
    float* p = static_cast<float*>(arena.alloc(n * sizeof(float)));
    kernel_synth_float<<<256, 256, 0, stream>>>(arith::SynthStream::of(1, ++key_), offset, scale,
                                                VCUDA_F32, true, n, p);
    return p;
  }
  template <class T>
  std::vector<T> host(const T* p, size_t n) {
    std::vector<T> v(n);
    check(cudaStreamSynchronize(stream), "wait");
    check(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return v;
  }
  void report(const char* name, int m, double overlapped, double alone, double bytes) const {
    std::printf(
        "%-22s M %d  %6.2f us overlapping, %6.2f us alone, %6.2f MB: %5.1f %% of the copy rate\n",
        name, m, overlapped, alone, bytes / 1e6, 100 * bytes / alone / 1e3 / rate);
  }

 private:
  uint64_t key_ = 0;
};

template <class T>
bool same(const char* name, int m, const char* what, const std::vector<T>& a,
          const std::vector<T>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0)
      return std::printf("%s M %d: %s DIFFERS first at %zu of %zu\n", name, m, what, i, a.size()),
             false;
  return true;
}

// ---- the delta rule

struct GdnForm {
  const char* name;
  bool registers;
  void (*launch)(const Stream&, GdnArgs, const StepParams*);
};

template <int J, int C, int Split>
void launch_gdn(const Stream& stream, GdnArgs a, const StepParams* step) {
  for (a.row0 = 0; a.row0 < a.m; a.row0 += kRowBlock)
    stream.launch("gdn", kernel_gdn<J, C, Split>, dim3(static_cast<unsigned>(a.v_heads * Split)),
                  dim3(gdn_threads<J, C, Split>()), sizeof(GdnShared<J, Split>), Split, a, step);
}

void launch_gdn_any(const Stream& stream, GdnArgs a, const StepParams* step) {
  stream.launch("gdn", kernel_gdn_any, dim3(static_cast<unsigned>(a.v_heads)), dim3(kGdnAnyThreads),
                sizeof(float) * static_cast<size_t>(gdn_any_shared_floats(a.dk, a.dv)), 1, a, step);
}

struct GdnResult {
  std::vector<float> out, s, conv;
  std::vector<uint8_t> act;
};

template <int J>
bool run_gdn(Bench& b, const char* shape, int k_heads, int v_heads, bool timed) {
  constexpr int kD = 8 * J;
  std::vector<GdnForm> forms{{"any size", false, launch_gdn_any},
                             {"one block a head", true, launch_gdn<J, J / 8, 1>}};
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, 0), "device");
  if (p.major == 9) forms.push_back({"two blocks a head", true, launch_gdn<J, 1, 2>});

  GdnArgs a{};
  a.k_heads = k_heads, a.v_heads = v_heads, a.repeat = v_heads / k_heads, a.dk = a.dv = kD,
  a.taps = 4, a.q_factor = 1.0f / std::sqrt(static_cast<float>(kD)), a.eps = 1e-6f;
  a.ld_in = a.conv_dim() + a.value_dim() + 2 * v_heads;
  const size_t conv_dim = static_cast<size_t>(a.conv_dim()),
               s_size = static_cast<size_t>(v_heads) * kD * kD;
  a.in = b.floats(static_cast<size_t>(kMost * a.ld_in), 0.0f, 2.0f);
  a.conv = b.floats(4 * conv_dim, 0.0f, 0.8f);
  a.a_neg = b.floats(static_cast<size_t>(v_heads), -1.0f, 0.9f);
  a.dt_bias = b.floats(static_cast<size_t>(v_heads), -1.5f, 2.5f);
  a.norm = b.floats(kD, 1.0f, 0.25f);
  a.out = b.floats(static_cast<size_t>(kMost * a.value_dim()));
  const int groups = a.value_dim() / arith::kGroup;
  const size_t act_bytes =
      act_block_offset(groups, kMost / kRowBlock) +
      static_cast<size_t>(groups) * static_cast<size_t>(act_stride(kMost % kRowBlock));
  a.act = static_cast<uint8_t*>(b.arena.alloc(act_bytes));
  StepParams step{};
  step.s_from = b.floats(kLaunches * s_size), step.s_to = b.floats(kLaunches * s_size);
  step.conv_from = b.floats(kLaunches * 3 * conv_dim),
  step.conv_to = b.floats(kLaunches * 3 * conv_dim);
  StepParams* params = static_cast<StepParams*>(b.arena.alloc(sizeof step));
  check(cudaMemcpy(params, &step, sizeof step, cudaMemcpyHostToDevice), "copy");

  // The same state in both orders: S of layer 0 as [i][n], and as the registers want it.
  const std::vector<float> plain = b.host(step.s_from, s_size);
  std::vector<float> ordered(s_size);
  auto index = [&](bool registers, size_t i) {
    const size_t head = i / (kD * kD), at = i % (kD * kD);
    return head * kD * kD + static_cast<size_t>(gdn_index(registers, static_cast<int>(at / kD),
                                                          static_cast<int>(at % kD), kD));
  };
  for (size_t i = 0; i < s_size; ++i) ordered[index(true, i)] = plain[i];

  for (int m : kChecked) {
    a.m = m;
    GdnResult expected;
    for (const GdnForm& form : forms) {
      check(cudaMemcpy(step.s_from, form.registers ? ordered.data() : plain.data(), s_size * 4,
                       cudaMemcpyHostToDevice),
            "copy");
      check(cudaMemset(a.out, 0xff, sizeof(float) * static_cast<size_t>(m * a.value_dim())),
            "fill");
      check(cudaMemset(a.act, 0xff, act_bytes), "fill");
      check(cudaMemset(step.s_to, 0xff, s_size * 4), "fill");
      check(cudaMemset(step.conv_to, 0xff, 3 * conv_dim * 4), "fill");
      check(cudaDeviceSynchronize(), "fill");
      form.launch(b.stream, a, params);
      GdnResult r{b.host(a.out, static_cast<size_t>(m * a.value_dim())),
                  {},
                  b.host(step.conv_to, 3 * conv_dim),
                  b.host(a.act, act_bytes)};
      const std::vector<float> s = b.host(step.s_to, s_size);
      r.s.resize(s_size);
      for (size_t i = 0; i < s_size; ++i) r.s[i] = s[index(form.registers, i)];
      if (!form.registers) expected = r;
      if (!same(form.name, m, "out", expected.out, r.out) ||
          !same(form.name, m, "S", expected.s, r.s) ||
          !same(form.name, m, "history", expected.conv, r.conv) ||
          !same(form.name, m, "quantized out", expected.act, r.act))
        return false;
    }
  }
  std::printf("gdn, %s: %zu forms equal, M = 1..8 and %d\n", shape, forms.size(), kMost);
  if (!timed) return true;
  for (const GdnForm& form : forms)
    for (int m : kTimed) {
      a.m = m;
      double us[2];
      for (int overlap = 0; overlap < 2; ++overlap) {
        const Stream& stream = overlap ? b.stream : b.serial;
        us[overlap] = graph_us(stream, kLaunches, [&](int i) {
          GdnArgs layer = a;
          layer.s_offset = static_cast<size_t>(i) * s_size,
          layer.conv_offset = static_cast<size_t>(i) * 3 * conv_dim;
          form.launch(stream, layer, params);
        });
      }
      b.report(form.name, m, us[1], us[0], 8.0 * static_cast<double>(s_size));
    }
  return true;
}

// ---- the norm

bool run_norm(Bench& b) {
  const int n = 5120;
  const size_t most = static_cast<size_t>(kMost) * n;
  NormArgs a{};
  a.n = n, a.eps = 1e-6f;
  a.x = b.floats(most, 0.1f, 3.0f), a.w = b.floats(static_cast<size_t>(n), 1.0f, 0.25f);
  a.y = b.floats(most);
  const size_t act_bytes = act_block_offset(n / arith::kGroup, ceil_div(kMost, kRowBlock));
  a.act = static_cast<uint8_t*>(b.arena.alloc(act_bytes));
  uint8_t* act = static_cast<uint8_t*>(b.arena.alloc(act_bytes));
  const std::vector<float> x = b.host(a.x, most), w = b.host(a.w, static_cast<size_t>(n));
  auto launch = [&](const Stream& stream) {
    stream.launch("norm", kernel_rms_norm,
                  dim3(static_cast<unsigned>(a.parts()), static_cast<unsigned>(a.m)),
                  dim3(kNormThreads), 0, 1, a);
  };
  for (int m : kChecked) {
    a.m = m;
    std::vector<float> expected(static_cast<size_t>(m) * n);
    for (int row = 0; row < m; ++row) {
      const float* v = x.data() + static_cast<size_t>(row) * n;
      float lanes[arith::kNormLanes] = {};
      for (int i = 0; i < n; ++i)
        lanes[i % arith::kNormLanes] = arith::fma32(v[i], v[i], lanes[i % arith::kNormLanes]);
      const float ss = arith::tree_sum<arith::kNormLanes>(lanes),
                  r = 1.0f / std::sqrt(ss / static_cast<float>(n) + a.eps);
      for (int i = 0; i < n; ++i)
        expected[static_cast<size_t>(row) * n + static_cast<size_t>(i)] =
            v[i] * r * w[static_cast<size_t>(i)];
    }
    check(cudaMemset(a.act, 0xff, act_bytes), "fill"),
        check(cudaMemset(act, 0xff, act_bytes), "fill");
    check(cudaDeviceSynchronize(), "fill");
    launch(b.stream);
    if (!same("norm", m, "y", expected, b.host(a.y, expected.size()))) return false;
    b.stream.launch(
        "quantize", kernel_quantize,
        dim3(static_cast<unsigned>(ceil_div(n / arith::kGroup, 8)), static_cast<unsigned>(m)),
        dim3(256), 0, 1, a.y, n, m, act);
    if (!same("norm", m, "quantized y", b.host(act, act_bytes), b.host(a.act, act_bytes)))
      return false;
  }
  std::printf("norm: equal to the host's, M = 1..8 and %d\n", kMost);
  for (int m : kTimed) {
    a.m = m;
    double us[2];
    for (int overlap = 0; overlap < 2; ++overlap) {
      const Stream& stream = overlap ? b.stream : b.serial;
      us[overlap] = graph_us(stream, kLaunches, [&](int) { launch(stream); });
    }
    b.report("norm", m, us[1], us[0], 8.0 * m * n);
  }
  return true;
}

// ---- silu's reciprocal

__global__ void kernel_reciprocal(unsigned* different) {
  const uint32_t one = arith::as_bits(1.0f), i = blockIdx.x * blockDim.x + threadIdx.x;
  const float d = arith::as_float(one + i);
  if (d <= 2.0f && arith::reciprocal32(d) != arith::div32(1.0f, d)) atomicAdd(different, 1u);
}

bool run_reciprocal(Bench& b) {
  unsigned* different = static_cast<unsigned*>(b.arena.alloc(sizeof(unsigned)));
  check(cudaMemset(different, 0, sizeof(unsigned)), "fill");
  kernel_reciprocal<<<(1u << 23) / 256 + 1, 256, 0, b.stream>>>(different);
  const unsigned count = b.host(different, 1)[0];
  std::printf("reciprocal: %u of %u operands from 1 to 2 %s\n", count, (1u << 23) + 1,
              count ? "DIFFER" : "differ from the division");
  return count == 0;
}

int run(const std::string& only) {
  Bench b;
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, 0), "device");
  b.stream.create(p.major >= 9), b.serial.create(false);
  b.rate = copy_rate(b.stream);
  std::printf("%s, %d multiprocessors, copy %.0f GB/s\n", p.name, p.multiProcessorCount, b.rate);
  auto wanted = [&](const char* name) { return only.empty() || only == name; };
  bool right = true;
  if (wanted("reciprocal")) right = run_reciprocal(b) && right;
  if (wanted("gdn")) {
    right = run_gdn<8>(b, "heads of 64", 2, 4, false) && right;
    right = run_gdn<16>(b, "heads of 128", 16, 48, true) && right;
  }
  if (wanted("norm")) right = run_norm(b) && right;
  return right ? 0 : 1;
}

}  // namespace bench

int main(int argc, char** argv) {
  const std::string only = argc == 3 && std::string(argv[1]) == "--case" ? argv[2] : "";
  const bool known = only == "gdn" || only == "norm" || only == "reciprocal";
  if (argc != 1 && !known)
    return std::fprintf(stderr, "usage: small_bench [--case gdn|norm|reciprocal]\n"), 2;
  try {
    return bench::run(only);
  } catch (const Error& e) {
    std::fprintf(stderr, "small_bench: %s\n", e.what());
    return 1;
  }
}
