// The file of this name in cuda/kernels, emulated, for a cluster of two blocks, each with half of
// the shared memory. A message to the other block and a bulk copy land at once or as late as a wait
// allows, in any order; a thread may rest behind an arrival.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>

#include "kernels/shared_access.cuh"

namespace vcuda::gpu {

class ClusterEmulation {
 public:
  size_t bytes = 0;  // of a block's shared memory
  unsigned chance = 1;
  const char* ahead = nullptr;  // what may be prefetched
  size_t ahead_bytes = 0;
  unsigned prefetches = 0;

  void clear() {
    barriers_.clear(), meetings_.clear(), messages_.clear();
    cluster_arrivals_ = 0;
  }
  // Behind the last cluster: something that nobody has waited for.
  bool open() const {
    return !messages_.empty() || std::any_of(barriers_.begin(), barriers_.end(),
                                             [](const auto& b) { return b.second.open(); });
  }
  static int rank() { return static_cast<int>(blockIdx.x % 2); }
  void init(uint64_t* b, int count) {
    Barrier& x = barriers_[b];
    if (x.open()) emulation::fail("a block has ended before something that was on its way to it");
    x = {count, count, 0, 0, emulation::cluster_number()};
    *b = kInPlace;
  }
  void arrive(uint64_t* b, int bytes_expected) {
    Barrier& x = barrier(b);
    x.bytes += bytes_expected, --x.pending;
    complete(x);
    if (next_chance() >> 31) return;
    bool rested = false;
    emulation::wait_until([&] { return std::exchange(rested, true); });
  }
  void wait(uint64_t* b, uint32_t parity) {
    Barrier& x = barrier(b);
    emulation::wait_until([&] {
      perhaps_deliver();
      return static_cast<uint32_t>(x.phase % 2) != parity;
    });
  }
  void copy(void* to, const void* from, size_t n, uint64_t* b) {
    if (n == 0 || n % 16 != 0 ||
        (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 != 0)
      return emulation::fail("a bulk copy that is not aligned, or of no bytes");
    later(b, n, [=] { std::memcpy(to, from, n); });
  }
  // Only what can be: of bytes that are there, and aligned.
  void prefetch(const void* from, size_t n) {
    const auto* p = static_cast<const char*>(from);
    if (n == 0 || n % 16 != 0 || reinterpret_cast<uintptr_t>(p) % 16 != 0 || p < ahead ||
        p + n > ahead + ahead_bytes)
      emulation::fail("a prefetch that is not aligned, of no bytes, or of others than there are");
    ++prefetches;
  }
  template <class V>
  void send(const void* place, uint64_t* b, int to, V v) {
    const ptrdiff_t other = (to - rank()) * static_cast<ptrdiff_t>(bytes);
    void* at = const_cast<char*>(static_cast<const char*>(place)) + other;
    auto* its = reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(b) + other);
    later(its, sizeof v, [=] { std::memcpy(at, &v, sizeof v); });
  }
  void cluster_arrive() {
    ++cluster_arrivals_;
    emulation::happened();
  }
  void cluster_wait() {  // behind this thread's arrival
    const long all =
        (cluster_arrivals_ + cluster_threads() - 1) / cluster_threads() * cluster_threads();
    emulation::wait_until([&] { return cluster_arrivals_ >= all; });
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
    unsigned cluster;
    bool open() const { return pending != count || bytes != 0; }
  };
  static constexpr uint64_t kInPlace = 0xb0a7;  // in shared memory, where the barrier is
  Barrier& barrier(uint64_t* b) {
    Barrier& x = barriers_[b];
    if (x.cluster != emulation::cluster_number())
      emulation::fail("a barrier that is not there yet");
    else if (*b != kInPlace) emulation::fail("a barrier that is written over");
    return x;
  }
  static long cluster_threads() { return 2 * static_cast<long>(blockDim.x); }
  void later(uint64_t* b, size_t n, std::function<void()> land) {
    messages_.push_back([=, this] {
      land();
      Barrier& x = barrier(b);
      x.bytes -= static_cast<int>(n);
      complete(x);
    });
    perhaps_deliver();
  }
  void complete(Barrier& x) {
    emulation::happened();
    if (x.pending == 0 && x.bytes == 0) ++x.phase, x.pending = x.count;
  }
  unsigned next_chance() { return chance = chance * 1664525u + 1013904223u; }
  void perhaps_deliver() {
    next_chance();
    if (messages_.empty()) return;
    emulation::happened();  // sooner or later
    if (chance >> 31) return;
    std::swap(messages_.front(), messages_[(chance >> 8) % messages_.size()]);
    const std::function<void()> land = std::move(messages_.front());
    messages_.pop_front();
    land();
  }
  std::map<uint64_t*, Barrier> barriers_;
  std::map<int, long> meetings_;
  std::deque<std::function<void()>> messages_;
  long cluster_arrivals_ = 0;
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
inline void barriers_ready() {}
inline void barrier_give_back(uint64_t* b, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(b);
}
inline void before_bulk_copy() {}
inline void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* b) {
  cluster_emulation.copy(to, from, bytes, b);
}
inline void bulk_prefetch(const void* from, uint32_t n) { cluster_emulation.prefetch(from, n); }
inline void cluster_arrive() { cluster_emulation.cluster_arrive(); }
inline void cluster_wait() { cluster_emulation.cluster_wait(); }

}  // namespace vcuda::gpu
