#include "cuda/project.h"

#include <algorithm>
#include <cstdlib>

#include "cuda/cuts.h"
#include "kernels/project_q4.cuh"
#include "kernels/project_q4_ring.cuh"
#include "model/tensor.h"

namespace vcuda::gpu {

struct RingVariant {
  int tiles;
  void (*kernel[3])(Projection, RingPlan);  // by Form
  bool behind_norm;                         // takes gates, and with pairs of tiles a norm
};

template <int R>
static constexpr RingVariant ring_variant() {
  return {R,
          {kernel_project_ring<R, Form::kPairs>, kernel_project_ring<R, Form::kFew>,
           kernel_project_ring<R, Form::kMany>},
          kBehindNorm<R>};
}

// Every cut gives the same bits.
static const RingVariant kRing[] = {
    ring_variant<2>(), ring_variant<5>(), ring_variant<7>(), ring_variant<8>(), ring_variant<11>(),
};

static const RingVariant& ring_variant(int tiles) {
  for (const RingVariant& v : kRing)
    if (v.tiles == tiles) return v;
  fail(VCUDA_E_INTERNAL, "project: no kernel for %d tiles", tiles);
}

Limits find_limits(const cudaDeviceProp& p, bool hopper) {
  Limits limits;
  limits.multiprocessors = p.multiProcessorCount;
  limits.shared = static_cast<int>(p.sharedMemPerBlockOptin);
  if (p.major != 9 || !hopper) return limits;
  limits.clusters = p.multiProcessorCount / 2;  // what every kernel can have
  for (const RingVariant& v : kRing)
    for (const auto& kernel : v.kernel) {
      check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, limits.shared),
            "project");
      cudaLaunchAttribute attribute = {};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = 2, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(static_cast<unsigned>(p.multiProcessorCount / 2 * 2)),
      config.blockDim = dim3(kRingThreads);
      config.dynamicSmemBytes = static_cast<size_t>(limits.shared), config.attrs = &attribute,
      config.numAttrs = 1;
      int clusters = 0;
      check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "project");
      limits.clusters = std::min(limits.clusters, clusters);
    }
  return limits;
}

// The simple kernel's cut: a warp a tile.
static Q4Matrix simple_matrix(int rows, int groups) {
  return {{rows, groups, 1, 1, 0}, false, 0, nullptr, {}, {}};
}

static Q4Matrix ring_matrix(int rows, int groups, int tiles, const Limits& limits) {
  Q4Matrix matrix{{rows, groups, 2, tiles, 0}, true, 0, nullptr, {}, {}};
  if (limits.clusters == 0) return matrix;
  matrix.clusters = std::min(limits.clusters, matrix.shape.slabs());
  if (!RingPlan(matrix.shape, kRowBlock, matrix.clusters, limits.shared, false).fits())
    matrix.clusters = 0;
  return matrix;
}

bool plan_variant(int n, int rows, int groups, const Limits& limits, Q4Matrix& matrix) {
  if (n > static_cast<int>(sizeof kRing / sizeof *kRing)) return false;
  matrix =
      n == 0 ? simple_matrix(rows, groups) : ring_matrix(rows, groups, kRing[n - 1].tiles, limits);
  return true;
}

// The best of the cuts with so many tiles, or of all where tiles is -1; the simple kernel's where
// none fits. Time is about the passes of the busiest block times the tiles of a pass, and something
// for each superstep.
static Q4Matrix best_cut(int rows, int groups, int tiles, const Limits& limits) {
  Q4Matrix best = simple_matrix(rows, groups);
  double least = 0;
  for (const RingVariant& v : kRing) {
    if (tiles >= 0 && tiles != v.tiles) continue;
    const Q4Matrix matrix = ring_matrix(rows, groups, v.tiles, limits);
    if (matrix.clusters == 0) continue;
    const double cost = ceil_div(matrix.shape.slabs(), matrix.clusters) * (v.tiles + 0.5);
    if (best.ring && cost >= least) continue;
    best = matrix;
    least = cost;
  }
  return best;
}

static Q4Matrix plan_rows(int rows, int groups, const Limits& limits) {
  if (const char* text = std::getenv("VLLM_CUDA_Q4_TILES"))
    return best_cut(rows, groups, std::atoi(text), limits);
  if (limits.multiprocessors == kMeasuredMultiprocessors)
    for (const MeasuredCut& cut : kMeasuredCuts)
      if (cut.rows == rows && cut.cols == groups * arith::kGroup) {
        const Q4Matrix matrix = best_cut(rows, groups, cut.tiles, limits);
        if (matrix.ring) return matrix;
      }
  return best_cut(rows, groups, -1, limits);
}

Q4Matrix plan_matrix(int rows, int groups, const Limits& limits, bool gated) {
  const Q4Matrix plain = plan_rows(rows, groups, limits);
  if (!gated || !plain.ring || !ring_variant(plain.shape.tiles).behind_norm ||
      rows % (2 * arith::kGroup) != 0)
    return plain;
  Q4Matrix units = plain;
  units.shape.gated = units.clusters;
  return RingPlan(units.shape, kRowBlock, units.clusters, limits.shared, false).fits() ? units
                                                                                       : plain;
}

void pack_matrix(Q4Matrix& matrix, const std::vector<Tensor>& stacked, Arena& arena,
                 const Stream& stream) {
  const Q4Shape& q = matrix.shape;
  matrix.data = static_cast<uint8_t*>(arena.alloc(q.bytes()));
  if (stacked.size() > 4) fail(VCUDA_E_INTERNAL, "upload: %zu stacked tensors", stacked.size());
  if (q.gated) {
    const int units = q.rows / (2 * arith::kGroup);
    const auto shared = static_cast<size_t>(std::max(0, units - q.gated_cluster(0).shared));
    matrix.gated.sums = static_cast<float4*>(arena.alloc(shared * 4 * 32 * sizeof(float4)));
    matrix.gated.arrived = static_cast<int*>(arena.alloc(shared * sizeof(int)));
    check(cudaMemsetAsync(matrix.gated.arrived, 0, shared * sizeof(int), stream),
          "upload of weights");
  }
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
    const size_t nibbles = static_cast<size_t>(t.rows) * static_cast<size_t>(t.cols) / 2,
                 scales = nibbles / 8;
    copies.emplace_back(nibbles);
    s.nibbles = static_cast<uint8_t*>(copies.back().get());
    upload(copies.back().get(), t.t->data, nibbles, stream);
    copies.emplace_back(scales);
    s.scales = static_cast<uint16_t*>(copies.back().get());
    upload(copies.back().get(), t.t->scales, scales, stream);
  }
  const size_t words = q.bytes() / 4;
  kernel_pack_q4<<<static_cast<unsigned>((words + 255) / 256), 256, 0, stream>>>(
      all, q, reinterpret_cast<uint32_t*>(matrix.data));
  check(cudaGetLastError(), "upload of weights");
  if (!copies.empty()) check(cudaStreamSynchronize(stream), "upload of weights");
}

void use_after(Q4Matrix& matrix, const Q4Matrix& next) {
  const Q4Shape& q = next.shape;
  const size_t stride = q.cell(0, 1, 0, 0) * static_cast<size_t>(q.cell_bytes());  // of a slab
  if (next.clusters > 0)
    matrix.next = {next.data, static_cast<uint32_t>(2 * next.clusters),
                   static_cast<uint32_t>(stride),
                   static_cast<uint32_t>(std::min<size_t>(stride, kAheadBytes))};
}

bool takes_norm(const Q4Matrix& matrix, int m, const Limits& limits) {
  static_assert(form_of(kNormedRows) == Form::kPairs);
  return matrix.clusters > 0 && m <= kNormedRows &&
         matrix.shape.supersteps() <= kNormedSupersteps &&
         ring_variant(matrix.shape.tiles).behind_norm &&
         RingPlan(matrix.shape, m, matrix.clusters, limits.shared, true).fits();
}

Projection projection(const Q4Matrix& matrix, int block, const uint8_t* act, const NormInput& norm,
                      int m, const Projected& to) {
  const bool units = matrix.shape.gated != 0;
  if (units ? to.add || to.beside.rows : !to.y || to.swiglu)
    fail(VCUDA_E_INTERNAL, "project: %s", units ? "gates and ups are not added to" : "no outputs");
  if (norm.x && block) fail(VCUDA_E_INTERNAL, "project: a norm of block %d", block);
  const size_t row = static_cast<size_t>(block) * kRowBlock, ld = static_cast<size_t>(to.ld);
  const int rows = matrix.shape.rows, rest = m - block * kRowBlock;
  Projection p{};
  p.weights = matrix.data;
  p.q = matrix.shape;
  p.act = act + act_block_offset(matrix.shape.groups, block);
  p.norm = norm;
  p.out = {to.y ? to.y + row * ld : nullptr, to.ld, rows, std::min(rest, kRowBlock), to.add};
  p.floats = to.beside;
  if (p.floats.rows) p.floats.x += row * static_cast<size_t>(p.floats.cols), p.floats.y += row * ld;
  p.gated = matrix.gated;
  if (to.swiglu) {
    p.gated.x = to.swiglu + row * static_cast<size_t>(rows / 2);
    p.gated.act = to.swiglu_act + act_block_offset(rows / 2 / arith::kGroup, block);
  }
  if (rest <= kRowBlock) p.next = matrix.next;  // else the same weights come once more
  return p;
}

void project_q4(const Q4Matrix& matrix, const Limits& limits, const Projection& p,
                const Stream& stream) {
  if (p.norm.x && !takes_norm(matrix, p.out.m, limits))
    fail(VCUDA_E_INTERNAL, "project: no kernel makes the norm of %d rows with %d tiles", p.out.m,
         p.q.tiles);
  if (!matrix.ring) {
    stream.launch(
        "project",
        few_rows(p.out.m) ? kernel_project_q4<Form::kFew> : kernel_project_q4<Form::kMany>,
        dim3(static_cast<unsigned>(ceil_div(p.q.rows, 16))), dim3(512), 0, 1, p.weights, p.q, p.act,
        p.out);
    return;
  }
  const RingPlan plan(p.q, p.out.m, matrix.clusters, limits.shared, p.norm.x != nullptr);
  if (!plan.fits())
    fail(VCUDA_E_INTERNAL, "project: no ring for %d rows with %d tiles", p.out.m, p.q.tiles);
  stream.launch("project", ring_variant(p.q.tiles).kernel[static_cast<size_t>(form_of(p.out.m))],
                dim3(static_cast<unsigned>(matrix.clusters * 2)), dim3(kRingThreads),
                static_cast<size_t>(plan.bytes), 2, p, plan);
}

}  // namespace vcuda::gpu
