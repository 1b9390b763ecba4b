#include "cuda/project.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/project_q4.cuh"
#include "model/tensor.h"

namespace vcuda::gpu {

using RingKernel = void (*)(const uint8_t*, Q4Shape, RingPlan, const uint8_t*, Output, FloatRows);

struct RingVariant {
  int warps, tiles;
  RingKernel kernel;
};

// What is compiled. Every one gives the same bits; q4_shapes.inc says which is fast where.
static const RingVariant kRing[] = {
    {8, 2, kernel_project_ring<8, 2>},   {8, 3, kernel_project_ring<8, 3>},   {8, 4, kernel_project_ring<8, 4>},   {8, 5, kernel_project_ring<8, 5>},
    {8, 6, kernel_project_ring<8, 6>},   {8, 7, kernel_project_ring<8, 7>},   {8, 8, kernel_project_ring<8, 8>},   {8, 11, kernel_project_ring<8, 11>},
    {16, 1, kernel_project_ring<16, 1>}, {16, 2, kernel_project_ring<16, 2>}, {16, 3, kernel_project_ring<16, 3>}, {16, 4, kernel_project_ring<16, 4>},
    {16, 5, kernel_project_ring<16, 5>},
};

// The fastest cut of a shape, measured: kernel_bench --table writes this file.
struct KnownShape {
  int rows, cols, warps, cluster, tiles;
};
static const KnownShape kKnown[] = {
#include "cuda/q4_shapes.inc"
};

static RingKernel ring_kernel(int warps, int tiles) {
  for (const RingVariant& v : kRing)
    if (v.warps == warps && v.tiles == tiles) return v.kernel;
  return nullptr;
}

void prepare_projections(const Limits& limits) {
  if (!limits.ring) return;
  for (const RingVariant& v : kRing)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(v.kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, limits.shared), "project");
}

static int most_clusters(const Q4Shape& q, const Limits& limits) {
  if (q.cluster == 1) return limits.multiprocessors;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(q.cluster), attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(limits.multiprocessors / q.cluster * q.cluster));
  config.blockDim = dim3(static_cast<unsigned>(ring_threads(q.warps)));
  config.dynamicSmemBytes = static_cast<size_t>(limits.shared);
  config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, ring_kernel(q.warps, q.tiles), &config), "project");
  return clusters;
}

Q4Matrix plan_matrix(int rows, int groups, const Limits& limits) {
  Q4Matrix simple{{rows, groups, 1, 16, 1}, false, 0, nullptr};
  if (!limits.ring) return simple;
  int forced_warps = 0, forced_cluster = 0, forced_tiles = 0;
  if (const char* text = std::getenv("VLLM_CUDA_Q4_SHAPE")) {
    if (std::sscanf(text, "%d,%d,%d", &forced_warps, &forced_cluster, &forced_tiles) != 3)
      fail(VCUDA_E_ARGUMENT, "VLLM_CUDA_Q4_SHAPE is '%s', must be warps,cluster,tiles", text);
    if (forced_warps == 0) return simple;
  }
  for (const KnownShape& k : kKnown)
    if (!forced_warps && k.rows == rows && k.cols == 32 * groups) forced_warps = k.warps, forced_cluster = k.cluster, forced_tiles = k.tiles;
  // For other shapes: time is about the passes of the busiest block times the tiles of a pass, and something for each pass.
  Q4Matrix best = simple;
  double least = 0;
  for (const RingVariant& v : kRing)
    for (int cluster = 1; cluster <= 8; cluster *= 2) {
      Q4Matrix matrix{{rows, groups, cluster, v.warps, v.tiles}, true, 0, nullptr};
      const Q4Shape& q = matrix.shape;
      if (v.warps % q.per_block() != 0 || !ring_fits(q, limits.shared)) continue;
      if (forced_warps && (v.warps != forced_warps || cluster != forced_cluster || v.tiles != forced_tiles)) continue;
      matrix.clusters = std::min(most_clusters(q, limits), q.slabs());
      if (matrix.clusters < 1) continue;
      const double cost = ceil_div(q.slabs(), matrix.clusters) * (v.tiles * v.warps + 6.0);
      if (best.ring && cost >= least) continue;
      best = matrix;
      least = cost;
    }
  return best;
}

bool plan_variant(int n, int rows, int groups, const Limits& limits, Q4Matrix& matrix) {
  if (n == 0) {
    matrix = {{rows, groups, 1, 16, 1}, false, 0, nullptr};
    return true;
  }
  constexpr int kClusters[] = {1, 2, 4, 8};
  const int variant = (n - 1) / 4;
  if (variant >= static_cast<int>(sizeof kRing / sizeof *kRing)) return false;
  matrix = {{rows, groups, kClusters[(n - 1) % 4], kRing[variant].warps, kRing[variant].tiles}, true, 0, nullptr};
  const Q4Shape& q = matrix.shape;
  if (q.warps % q.per_block() == 0 && ring_fits(q, limits.shared)) matrix.clusters = std::min(most_clusters(q, limits), q.slabs());
  return true;
}

void pack_matrix(Q4Matrix& matrix, const std::vector<Tensor>& stacked, Arena& arena, const Stream& stream) {
  const Q4Shape& q = matrix.shape;
  matrix.data = static_cast<uint8_t*>(arena.alloc(q.bytes()));
  if (stacked.size() > 4) fail(VCUDA_E_INTERNAL, "upload: %zu stacked tensors", stacked.size());
  std::vector<Temporary> copies;
  Q4Sources all{};
  int row = 0;
  for (const Tensor& t : stacked) {
    Q4Source& s = all.source[all.count++];
    s.row0 = row;
    s.row_end = row += static_cast<int>(t.rows);
    s.stream = synth_stream(*t.t);
    s.scale = t.t->synth.scale;
    if (!t.t->data) continue;
    const size_t nibbles = static_cast<size_t>(t.rows) * static_cast<size_t>(t.cols) / 2, scales = nibbles / 8;
    copies.emplace_back(nibbles);
    s.nibbles = static_cast<uint8_t*>(copies.back().get());
    check(cudaMemcpy(copies.back().get(), t.t->data, nibbles, cudaMemcpyHostToDevice), "upload of weights");
    copies.emplace_back(scales);
    s.scales = static_cast<uint16_t*>(copies.back().get());
    check(cudaMemcpy(copies.back().get(), t.t->scales, scales, cudaMemcpyHostToDevice), "upload of weights");
  }
  const size_t words = q.bytes() / 4;
  kernel_pack_q4<<<static_cast<unsigned>((words + 255) / 256), 256, 0, stream>>>(all, q, reinterpret_cast<uint32_t*>(matrix.data));
  check(cudaGetLastError(), "upload of weights");
  if (!copies.empty()) check(cudaStreamSynchronize(stream), "upload of weights");
}

void project_q4(const Q4Matrix& matrix, const Limits& limits, const uint8_t* act, int m, float* y, int ld, bool add, const FloatRows& floats, const Stream& stream) {
  const Q4Shape& q = matrix.shape;
  for (int row = 0; row < m; row += kRowBlock) {
    const Output out{y + static_cast<size_t>(row) * ld, ld, q.rows, std::min(m - row, kRowBlock), add};
    const uint8_t* x = act + act_block_offset(q.groups, row / kRowBlock);
    if (matrix.ring) {
      FloatRows beside = floats;
      if (beside.rows) beside.x += static_cast<size_t>(row) * beside.cols, beside.y += static_cast<size_t>(row) * ld;
      const RingPlan plan(q, out.m, limits.shared);
      stream.launch("project", ring_kernel(q.warps, q.tiles), dim3(static_cast<unsigned>(matrix.clusters * q.cluster)),
                    dim3(static_cast<unsigned>(ring_threads(q.warps))), static_cast<size_t>(plan.bytes), q.cluster, matrix.data, q, plan, x, out, beside);
    } else {
      stream.launch("project", kernel_project_q4, dim3(static_cast<unsigned>(ceil_div(q.rows, 16))), dim3(512), 0, 1, matrix.data, q, x, out);
    }
  }
}

}  // namespace vcuda::gpu
