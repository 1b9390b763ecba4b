// The norm in front of a projection of one or two rows, made by the projection's own blocks.
//
// Every block forms the sums of all rows and quantizes what its own lanes multiply, while its ring
// fills with weights. That is dearer in instructions than a kernel of its own and cheaper in time:
// no launch lies in between, and no small block keeps a multiprocessor from the projection's.
#pragma once

#include "kernels/ring.cuh"

namespace vcuda::gpu {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900

// The consumers. A team of kNormThreads sums a row, as many teams as there are rows; then all teams
// quantize, the four of one row or two of each.
__device__ __forceinline__ void ring_normalize(const RingBlock& b, const RingPlan& plan,
                                               const Projection& p) {
  static_assert(kNormTeams == 4 && kNormedRows == 2);
  constexpr int kMost = kNormedSupersteps / 2;  // quads of a thread
  const int m = p.out.m, share = m == 1 ? kNormTeams : kNormTeams / 2;
  const int team = threadIdx.x / kNormThreads, t = threadIdx.x % kNormThreads;
  const int quads = p.q.groups * (arith::kGroup / 4), row = m == 1 ? 0 : team / 2;
  const float4* rows = reinterpret_cast<const float4*>(b.shared + plan.sums);
  // This thread's quad of a superstep: eight threads have a group, the team the block's eight.
  // Its norm weights are on their way already, for all supersteps it has.
  int s = team & (share - 1), at = (2 * s + b.rank) * kNormThreads + t;
  const float4* weights = reinterpret_cast<const float4*>(p.norm.w);
  float4 weight[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i)
    weight[i] = weights[min(at + 2 * i * share * kNormThreads, quads - 1)];
  barrier_wait(&b.bars->rows, 0);
  if (team < m) {
    auto sync = [&] {
      team == 0 ? named_barrier<2, kNormThreads>() : named_barrier<3, kNormThreads>();
    };
    const float r = norm_factor(
        quads, p.norm.eps, t, b.bars->norm_sums[team],
        [&](int i) { return rows[team * quads + i]; }, sync);
    if (t == 0) {
      b.bars->factors[team] = r;
      barrier_arrive(&b.bars->factored);
    }
    __syncwarp();
  }
  barrier_wait(&b.bars->factored, 0);
  const float r = b.bars->factors[row];
  const int stride = plan.superstep / kConsumers;
  uint8_t* to = b.shared + plan.staying + s * plan.superstep + t / 8 * stride;
#pragma unroll 1
  for (; s < plan.supersteps; s += share) {
    const bool here = at < quads;
    const float4 x = rows[row * quads + min(at, quads - 1)];
    const QuantizedQuad<1> quad(norm_apply(x, r, weight[0]));
#pragma unroll
    for (int i = 0; i + 1 < kMost; ++i) weight[i] = weight[i + 1];
    if (here) quad.write<true>(to, m, row, t % 32);
    at += 2 * share * kNormThreads, to += share * plan.superstep;
  }
  named_barrier<4, kConsumers * 32>();
}
#endif

}  // namespace vcuda::gpu
