// Hopper's barriers in shared memory, bulk copies and messages between the blocks of a cluster.
// tests/emulation has a file of this name in its place.
#pragma once

#include "kernels/shared_access.cuh"

namespace vcuda::gpu {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900

__device__ __forceinline__ void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(count)
               : "memory");
}
// Behind a thread's barrier_init, for the other block and for copies.
__device__ __forceinline__ void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(b)) : "memory");
}
// By a warp that has read what a bulk copy may write over when all have arrived. Copies are of the
// asynchronous proxy: without the fence the arrival is behind the reads in the program only, and a
// copy from the second-level cache can be faster than a read that waits for its turn (NOTES.md).
__device__ __forceinline__ void barrier_give_back(uint64_t* b, int lane) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (lane == 0) barrier_arrive(b);
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(b)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait_%=;\n}" ::"r"(
          shared_at(b)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra "
      "wait_%=;\n}" ::"r"(shared_at(b)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* b) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_at(to)),
      "l"(from), "r"(bytes), "r"(shared_at(b))
      : "memory");
}
// Before a bulk copy of what other kernels wrote.
__device__ __forceinline__ void before_bulk_copy() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// Into the second-level cache.
__device__ __forceinline__ void bulk_prefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// The barrier of the cluster's threads, in two parts. The arrival is relaxed: a release would wait
// for every access on its way.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Where the same place of block `rank` of the cluster is.
__device__ __forceinline__ uint32_t shared_at(const void* p, int rank) {
  uint32_t to;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_at(p)), "r"(rank));
  return to;
}
// Values into the same place of block `rank`, counted by its barrier.
__device__ __forceinline__ void send(const void* place, uint64_t* b, int rank, float2 v) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%2, %3}, [%1];" ::
          "r"(shared_at(place, rank)),
      "r"(shared_at(b, rank)), "f"(v.x), "f"(v.y)
      : "memory");
}
__device__ __forceinline__ void send(const void* place, uint64_t* b, int rank, float4 v) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, "
      "[%1];" ::"r"(shared_at(place, rank)),
      "r"(shared_at(b, rank)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}
template <int Id, int Threads>
__device__ __forceinline__ void named_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}
#endif

}  // namespace vcuda::gpu
