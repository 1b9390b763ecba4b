// A thread pool for short parallel loops. Tasks are independent: which thread runs which never changes a bit.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace vcuda {

class Pool {
 public:
  explicit Pool(int threads);  // the caller's thread is one of them
  ~Pool();
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // f(task) for task in [0, n); returns when all are done.
  template <class F>
  void run(int n, const F& f) {
    if (n <= 1 || workers_.empty()) {
      for (int i = 0; i < n; ++i) f(i);
      return;
    }
    start(n, [](const void* context, int i) { (*static_cast<const F*>(context))(i); }, &f);
  }

  // f(begin, end) over [0, n) cut into pieces of about equal size, a few per thread.
  template <class F>
  void run_ranges(int n, int smallest, const F& f) {
    int pieces = workers_.empty() ? 1 : 4 * threads();
    if (pieces > n / smallest) pieces = n / smallest > 0 ? n / smallest : 1;
    run(pieces, [&](int i) {
      f(static_cast<int>(static_cast<long long>(n) * i / pieces), static_cast<int>(static_cast<long long>(n) * (i + 1) / pieces));
    });
  }

 private:
  using Call = void (*)(const void*, int);
  void start(int n, Call call, const void* context);
  void drain();
  void work();

  std::vector<std::thread> workers_;
  Call call_ = nullptr;
  const void* context_ = nullptr;
  int tasks_ = 0;
  std::atomic<int> next_{0};         // next task
  std::atomic<int> busy_{0};         // workers still in this round
  std::atomic<unsigned> round_{0};   // raised to start a round
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace vcuda
