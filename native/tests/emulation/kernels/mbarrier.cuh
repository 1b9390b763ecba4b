// The file of this name in cuda/kernels, emulated, for the two blocks of a cluster as one block's
// threads: the lower half of them and the upper one, each with half of the shared memory. A message
// to the other block lands at once or as late as a wait allows.
#pragma once

#include <deque>
#include <functional>
#include <map>

#include "kernels/shared_access.cuh"

namespace vcuda::gpu {

class ClusterEmulation {
 public:
  size_t bytes = 0;  // of a block's shared memory
  unsigned chance = 1;

  void clear() { barriers_.clear(), meetings_.clear(), messages_.clear(); }
  static int rank() { return threadIdx.x >= blockDim.x / 2 ? 1 : 0; }
  void init(uint64_t* b, int count) { barriers_[b] = {count, count, 0, 0}; }
  void arrive(uint64_t* b, int bytes_expected) {
    Barrier& x = barriers_.at(b);
    x.bytes += bytes_expected, --x.pending;
    complete(x);
  }
  void wait(uint64_t* b, uint32_t parity) {
    Barrier& x = barriers_.at(b);
    emulation::wait_until([&] {
      perhaps_deliver();
      return static_cast<uint32_t>(x.phase % 2) != parity;
    });
  }
  template <class V>
  void send(const void* place, uint64_t* b, int to, V v) {
    const ptrdiff_t other = (to - rank()) * static_cast<ptrdiff_t>(bytes);
    void* at = const_cast<char*>(static_cast<const char*>(place)) + other;
    auto* barrier = reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(b) + other);
    messages_.push_back([=, this] {
      std::memcpy(at, &v, sizeof v);
      Barrier& x = barriers_.at(barrier);
      x.bytes -= static_cast<int>(sizeof v);
      complete(x);
    });
    perhaps_deliver();
  }
  void meet(int id, int threads) {
    long& arrivals = meetings_[id * 2 + rank()];
    const long all = arrivals / threads * threads + threads;
    ++arrivals;
    emulation::happened();
    emulation::wait_until([&] { return arrivals >= all; });
  }

 private:
  struct Barrier {
    int count, pending, bytes, phase;
  };
  void complete(Barrier& x) {
    emulation::happened();
    if (x.pending == 0 && x.bytes == 0) ++x.phase, x.pending = x.count;
  }
  void perhaps_deliver() {
    chance = chance * 1664525u + 1013904223u;
    if (messages_.empty() || chance >> 31) return;
    messages_.front()();
    messages_.pop_front();
  }
  std::map<uint64_t*, Barrier> barriers_;
  std::map<int, long> meetings_;
  std::deque<std::function<void()>> messages_;
};
inline ClusterEmulation cluster_emulation;

inline void barrier_init(uint64_t* b, int count) { cluster_emulation.init(b, count); }
inline void barrier_arrive(uint64_t* b) { cluster_emulation.arrive(b, 0); }
inline void barrier_expect(uint64_t* b, uint32_t bytes) {
  cluster_emulation.arrive(b, static_cast<int>(bytes));
}
inline void barrier_wait(uint64_t* b, uint32_t parity) { cluster_emulation.wait(b, parity); }
inline void barrier_wait_cluster(uint64_t* b, uint32_t parity) { barrier_wait(b, parity); }
template <class V>
void send(const void* place, uint64_t* b, int rank, V v) {
  cluster_emulation.send(place, b, rank, v);
}
template <int Id, int Threads>
void named_barrier() {
  cluster_emulation.meet(Id, Threads);
}
// Not emulated:
void barrier_give_back(uint64_t* b, int lane);
void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* b);
void bulk_prefetch(const void* from, uint32_t bytes);

}  // namespace vcuda::gpu
