// A thread pool for short parallel loops. Tasks are independent: which thread runs which never
// changes a bit.
//
// The caller works too, and waits for tasks, never for threads: a worker that the system keeps from
// running costs its share of the speed and nothing else. Nobody spins for longer than a pause
// within a step lasts, so that idle threads leave the cores to others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace vcuda {

class Pool {
 public:
  explicit Pool(int threads);  // the caller's thread is one of them
  ~Pool();
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // f(task) for task in [0, n); returns when all are done. bytes: memory one task touches; too
  // little of it in all is not worth waking a thread for.
  template <class F>
  void run(int n, size_t bytes, const F& f) {
    if (n <= 1 || workers_.empty() || n * bytes < kWorthwhile) {
      for (int i = 0; i < n; ++i) f(i);
      return;
    }
    start(
        n, [](const void* context, int i) { (*static_cast<const F*>(context))(i); }, &f);
  }

  // f(begin, end) over [0, n), cut into a few pieces per thread. bytes: memory one index touches.
  template <class F>
  void run_ranges(int n, size_t bytes, const F& f) {
    const long long most = static_cast<long long>(n * bytes / kWorthwhile), wanted = 4 * threads();
    const int pieces = static_cast<int>(most < 1 ? 1 : most < wanted ? most : wanted);
    run(pieces, kWorthwhile, [&](int i) {
      f(static_cast<int>(static_cast<long long>(n) * i / pieces),
        static_cast<int>(static_cast<long long>(n) * (i + 1) / pieces));
    });
  }

 private:
  static constexpr size_t kWorthwhile = 32 << 10;
  using Call = void (*)(const void*, int);
  void start(int n, Call call, const void* context);
  void drain();
  void work();
  bool open() const { return static_cast<uint32_t>(tasks_.load()) != 0; }

  std::vector<std::thread> workers_;
  // Of the round in progress. Written only while no task is left or running; read only by who has
  // taken a task, which keeps the round from ending.
  Call call_ = nullptr;
  const void* context_ = nullptr;
  int count_ = 0;
  // Number of the round in the upper half, tasks that nobody has taken yet in the lower: a thread
  // that comes late cannot take a task of another round than the one it has looked at.
  alignas(64) std::atomic<uint64_t> tasks_{0};
  alignas(64) std::atomic<int> done_{0};      // tasks that have ended and were counted
  std::atomic<bool> waiting_{false};          // the caller waits for ended_
  alignas(64) std::atomic<int> sleepers_{0};  // workers that wait for wake_
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_, ended_;
};

}  // namespace vcuda
