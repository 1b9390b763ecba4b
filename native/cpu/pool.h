// A thread pool for short parallel loops. Tasks are independent: which thread runs which never
// changes a bit.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
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

  std::vector<std::thread> workers_;
  Call call_ = nullptr;
  const void* context_ = nullptr;
  int tasks_ = 0;
  std::atomic<int> next_{0};        // next task
  std::atomic<int> busy_{0};        // workers still in this round
  std::atomic<unsigned> round_{0};  // raised to start a round
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace vcuda
