// The reducers of a projection's clusters (kernels/ring_reduce.cuh, ring_gate.cuh), emulated on the
// CPU (emulation/emulation.h), from random lane sums: outputs against the contract's tree, units of
// gates and ups against kernel_swiglu, by bytes, for matrices and grids in which units go on in the
// next slab or are shared by clusters, which run one after the other here. What chance decides
// follows from the seed that a failure names. One line a failure; exit 1 then.
//
// Seen red with each of these planted, in either file where both have it: no barrier of this
// block's own sums or behind a pass (ring_reduce), no wait for lane sums or for the other block's,
// kept sums of one pass in place of the other's, a unit or a shared tile of the wrong block, ups 32
// rows off, two columns' values exchanged, a count that is not set back.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "arith/synth.h"
#include "kernels/ring_gate.cuh"
#include "kernels/ring_reduce.cuh"
#include "kernels/swiglu.cuh"

using namespace vcuda;
using namespace vcuda::gpu;

namespace {

constexpr int kShared = 227 * 1024;
constexpr unsigned kBlock = (kReducers + 1) * 32;  // reducers, and a warp in place of the consumers

// Component c of a thread's sum of a tile, of one of the contract's 16 lanes.
float lane_sum(int slab, int tile, int l, int thread, int c) {
  const uint64_t key = ((((static_cast<uint64_t>(slab) * 16 + static_cast<uint64_t>(tile)) * 16 +
                          static_cast<uint64_t>(l)) *
                             32 +
                         static_cast<uint64_t>(thread)) *
                            4 +
                        static_cast<uint64_t>(c));
  return arith::synth_float(arith::SynthStream::of(1, 0), key, 0.0f, 1.0f);
}
template <class Sum>
Sum thread_sum(int slab, int tile, int l, int thread) {
  float v[4];
  for (int c = 0; c < 4; ++c) v[c] = lane_sum(slab, tile, l, thread, c);
  Sum sum;
  std::memcpy(&sum, v, sizeof sum);
  return sum;
}

struct Case {
  int rows, tiles, clusters, m;
  bool gated;
};

template <int R, bool Few>
std::string run(const Case& c, unsigned seed) {
  using Sum = TileSum<Few>;
  Q4Shape q{c.rows, 16, 2, kConsumers, R, 0};
  const int clusters = std::min(c.clusters, q.slabs()), half = c.rows / 2, m = c.m;
  if (c.gated) q.gated = clusters;
  const RingPlan plan(q, m, clusters, kShared, false);
  auto floats = [](size_t n) { return std::vector<float>(n, -7.0f); };
  const size_t values = static_cast<size_t>(m) * static_cast<size_t>(c.rows);
  std::vector<float> y = floats(values), expected = floats(values), x = floats(values / 2),
                     expected_x = x;
  std::vector<uint8_t> act(act_block_offset(half / 32 + 1, 1), 9), expected_act = act;
  std::vector<float4> shared(static_cast<size_t>(c.rows) / 16 * 32);
  std::vector<int> arrived(static_cast<size_t>(c.rows) / 64 + 1);
  Projection p{};
  p.q = q, p.out = {y.data(), c.rows, c.rows, m, false};
  p.gated = {x.data(), act.data(), shared.data(), arrived.data()};

  for (int slab = 0; slab < q.slabs(); ++slab)
    for (int tile = 0; tile < R; ++tile)
      for (int t = 0; t < 32; ++t) {
        Sum lanes[16];
        for (int l = 0; l < 16; ++l) lanes[l] = thread_sum<Sum>(slab, tile, l, t);
        const Sum sum = tree<16>(lanes, 1);
        float v[4] = {};
        std::memcpy(v, &sum, sizeof sum);
        for (int i = 0; i < static_cast<int>(sizeof sum / 4); ++i) {
          const int row = q.row(slab, tile, t / 4 + (Few ? i : i / 2) * 8),
                    column = Few ? t % 4 : t % 4 * 2 + i % 2;
          if (row < c.rows && column < m)
            expected[static_cast<size_t>(column) * c.rows + row] = v[i];
        }
      }

  alignas(128) static uint8_t memory[2 * kShared];
  const size_t bytes = static_cast<size_t>(plan.bytes + 127) / 128 * 128;
  cluster_emulation.bytes = bytes, cluster_emulation.chance = seed;
  for (int cluster = 0; cluster < clusters; ++cluster) {
    cluster_emulation.clear();
    const char* fault = emulation::launch(
        seed + static_cast<unsigned>(cluster), 2, kBlock, {memory, 2 * bytes, 2 * bytes},
        [&] {
          const int rank = ClusterEmulation::rank(), warp = threadIdx.x / 32,
                    lane = threadIdx.x % 32;
          RingBlock b(memory + static_cast<size_t>(rank) * bytes, plan);
          b.rank = rank, b.first = cluster, b.step = clusters;
          b.slabs = plan.slabs_each + (cluster < plan.slabs_more ? 1 : 0);
          if (threadIdx.x == 0) {
            barrier_init(&b.bars->exchange[0], 1), barrier_init(&b.bars->exchange[1], 1);
            barrier_init(&b.bars->sums, 32), barrier_init(&b.bars->taken, kReducers * 32);
          }
          __syncthreads();
          cluster_arrive(), cluster_wait();
          if (warp < kReducers) {
            if constexpr (kBehindNorm<R>)
              if (q.gated) return ring_gate<R, Few>(b, plan, p, warp);
            return ring_reduce<R, Few>(b, plan, p, warp);
          }
          for (int pass = 0; pass < b.slabs; ++pass) {
            barrier_wait(&b.bars->taken, static_cast<uint32_t>(1 - pass % 2));
            Sum* sums = reinterpret_cast<Sum*>(b.shared + plan.sums) + lane;
            for (int w = 0; w < kConsumers; ++w)
              for (int tile = 0; tile < R; ++tile)
                sums[(w * R + tile) * 32] =
                    thread_sum<Sum>(cluster + pass * clusters, tile, rank * kConsumers + w, lane);
            barrier_arrive(&b.bars->sums);
          }
        },
        2);
    if (fault) return fault;
  }
  auto same = [](const auto& a, const auto& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
  };
  if (!same(y, expected)) return "outputs differ";
  if (!c.gated) return "";
  const SwigluArgs swiglu{expected.data(), expected_x.data(), expected_act.data(), half, m};
  const unsigned blocks = static_cast<unsigned>(ceil_div(half / 32, 8));
  if (const char* fault = emulation::launch(seed, {blocks, static_cast<unsigned>(m)}, 256,
                                            {memory, 0, 0}, [&] { kernel_swiglu(swiglu); }))
    return fault;
  if (!same(x, expected_x)) return "swiglu differs";
  if (!same(act, expected_act)) return "the quantized swiglu differs";
  for (int n : arrived)
    if (n != 0) return "a count of shared units is not 0 again";
  return "";
}

std::string run(const Case& c, unsigned seed) {
  const bool few = few_rows(c.m);
  switch (c.tiles) {
    case 5: return few ? run<5, true>(c, seed) : run<5, false>(c, seed);
    case 7: return few ? run<7, true>(c, seed) : run<7, false>(c, seed);
    case 8: return few ? run<8, true>(c, seed) : run<8, false>(c, seed);
    default: return few ? run<11, true>(c, seed) : run<11, false>(c, seed);
  }
}

}  // namespace

int main() {
  int cases = 0, failures = 0;
  unsigned seed = 1;
  for (int tiles : {5, 7, 8, 11})
    for (int clusters : {1, 2, 3, 5})
      for (int units : {1, 4, 9, 22, 33})
        for (int m : {1, 3, 4, 5, 8})
          for (bool gated : {false, true}) {
            if (gated && tiles < 7) continue;
            const Case c{units * 64, tiles, clusters, m, gated};
            for (int i = 0; i < 4; ++i) {
              ++cases, ++seed;
              if (const std::string what = run(c, seed); !what.empty()) {
                std::printf("%d units, %d tiles, %d clusters, M %d, %s, seed %u: %s\n", units,
                            tiles, clusters, m, gated ? "gated" : "plain", seed, what.c_str());
                if (++failures == 20) return 1;
              }
            }
          }
  std::printf("%d projections' sums\n", cases);
  return failures ? 1 : 0;
}
