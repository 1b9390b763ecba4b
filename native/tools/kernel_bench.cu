// kernel_bench [M ...] [--case NAME]: the Q4 projection at the 27B's shapes, every compiled cut of
// the rows: first the bits against the simple kernel's, then the time, with bytes and share of the
// copy rate measured in the same run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/project.h"
#include "kernels/quantize.cuh"
#include "kernels/synth.cuh"

using namespace vcuda;
using namespace vcuda::gpu;

namespace bench {

struct Case {
  const char* name;
  int rows, cols;
};

const Case kCases[] = {{"gdn in", 16384, 5120}, {"attention in", 14336, 5120},
                       {"out", 5120, 6144},     {"gate_up", 34816, 5120},
                       {"down", 5120, 17408},   {"head", 248320, 5120}};

template <class F>
double median_us(cudaStream_t stream, int repeats, const F& f) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event"), check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < repeats + 2; ++i) {
    check(cudaEventRecord(begin, stream), "event");
    f();
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "event");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 2) times.push_back(ms * 1000);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double copy_rate(Arena& arena, cudaStream_t stream) {  // bytes read plus written, per microsecond
  const size_t bytes = size_t{2} << 30;
  void *a = arena.alloc(bytes), *b = arena.alloc(bytes);
  return 2.0 * static_cast<double>(bytes) / median_us(stream, 7, [&] {
           check(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
         });
}

void run(const std::vector<int>& ms, const char* only) {
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, 0), "device");
  const Limits limits = find_limits(p);
  Stream stream;
  stream.create(p.major >= 9);
  double rate;
  {
    Arena arena;
    rate = copy_rate(arena, stream);
  }
  std::printf("%s, %d multiprocessors, copy %.0f GB/s\n", p.name, p.multiProcessorCount,
              rate / 1000);
  for (const Case& c : kCases) {
    if (only && std::string(only).find(c.name) == std::string::npos) continue;
    const int groups = c.cols / 32;
    Arena shared;
    float* x = static_cast<float*>(shared.alloc(sizeof(float) * 8 * c.cols));
    uint8_t* act = static_cast<uint8_t*>(shared.alloc(act_block_offset(groups, 1)));
    float* y[2];
    for (float*& v : y) v = static_cast<float*>(shared.alloc(sizeof(float) * 8 * c.rows));
    kernel_synth_float<<<256, 256, 0, stream>>>(arith::SynthStream::of(1, 2), 0.0f, 1.0f, VCUDA_F32,
                                                true, size_t{8} * c.cols, x);
    vcuda_tensor t{};
    t.type = VCUDA_Q4;
    t.synth = {1, 77, 0.0f, 0.01f};
    const std::vector<Tensor> tensors{{&t, c.rows, c.cols}};
    std::vector<float> reference[9];
    for (int variant = 0;; ++variant) {
      Q4Matrix planned;
      if (!plan_variant(variant, c.rows, groups, limits, planned)) break;
      const Q4Shape& q = planned.shape;
      if (planned.ring && planned.clusters == 0) continue;
      Arena arena;
      const int copies =
          planned.ring ? static_cast<int>(std::min<size_t>(16, (size_t{300} << 20) / q.bytes() + 1))
                       : 1;
      std::vector<Q4Matrix> matrices(static_cast<size_t>(copies), planned);
      for (Q4Matrix& m : matrices) pack_matrix(m, tensors, arena, stream);
      for (int m : ms) {
        stream.launch("quantize", kernel_quantize, dim3(ceil_div(groups, 8), m), dim3(256), 0, 1, x,
                      c.cols, m, act);
        check(cudaMemsetAsync(y[1], 0xff, sizeof(float) * 8 * c.rows, stream), "fill");
        project_q4(matrices[0], limits, projection(matrices[0], 0, act, m, y[1], c.rows, false, {}),
                   stream);
        std::vector<float> out(static_cast<size_t>(m) * c.rows);
        check(cudaStreamSynchronize(stream), "project");
        check(cudaMemcpy(out.data(), y[1], out.size() * 4, cudaMemcpyDeviceToHost), "copy");
        if (reference[m].empty()) reference[m] = out;
        const bool equal = std::memcmp(out.data(), reference[m].data(), out.size() * 4) == 0;
        if (!equal) {
          std::printf("%-13s M %d warps %2d cluster %d tiles %2d  DIFFERS\n", c.name, m, q.warps,
                      q.cluster, q.tiles);
          continue;
        }
        if (!planned.ring) continue;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        const int launches = std::max(copies, 16);
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
        for (int i = 0; i < launches; ++i) {
          const Q4Matrix& matrix = matrices[static_cast<size_t>(i % copies)];
          project_q4(matrix, limits, projection(matrix, 0, act, m, y[i % 2], c.rows, false, {}),
                     stream);
        }
        check(cudaStreamEndCapture(stream, &graph), "capture");
        check(cudaGraphInstantiate(&exec, graph, 0), "graph");
        const double us =
            median_us(stream, 7, [&] { check(cudaGraphLaunch(exec, stream), "launch"); }) /
            launches;
        cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
        const double bytes = c.rows * double(groups) * 18;
        std::printf(
            "%-13s M %d warps %2d cluster %d tiles %2d clusters %3d passes %3d  %7.2f us  %5.0f "
            "GB/s  %5.1f %% of the copy rate\n",
            c.name, m, q.warps, q.cluster, q.tiles, planned.clusters,
            ceil_div(q.slabs(), planned.clusters), us, bytes / us / 1000, 100 * bytes / us / rate);
      }
    }
    std::fflush(stdout);
  }
}

}  // namespace bench

int main(int argc, char** argv) {
  std::vector<int> ms;
  const char* only = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--case" && i + 1 < argc) only = argv[++i];
    else if (std::atoi(argv[i]) >= 1 && std::atoi(argv[i]) <= 8) ms.push_back(std::atoi(argv[i]));
    else
      return std::fprintf(stderr, "kernel_bench [M ...] [--case NAME]: what is '%s'?\n", argv[i]),
             2;
  }
  if (ms.empty()) ms = {1, 8};
  try {
    bench::run(ms, only);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
