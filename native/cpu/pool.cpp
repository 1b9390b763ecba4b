#include "cpu/pool.h"

#include <system_error>

namespace vcuda {
namespace {

// Turns of spinning before a thread sleeps, 20 to 50 ns each. A worker bridges the pauses between
// the rounds of a step and between two steps in a row; the caller waits for the last tasks of a
// round. Longer, either would take a core from somebody, perhaps from the thread that it waits for.
constexpr int kWorkerSpins = 8000;
constexpr int kCallerSpins = 4000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Whether a condition comes true while it is worth spinning for.
template <class F>
bool spin_until(int spins, const F& condition) {
  for (int spin = 0; spin < spins; ++spin) {
    if (condition()) return true;
    pause();
  }
  return condition();
}

}  // namespace

Pool::Pool(int threads) {
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // Fewer threads than asked for: slower, the same bits.
  }
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
}

// Takes and runs tasks until none is left.
void Pool::drain() {
  int ran = 0, count = 0;
  uint64_t seen = tasks_.load();
  while (const uint32_t left = static_cast<uint32_t>(seen)) {
    if (!tasks_.compare_exchange_weak(seen, seen - 1)) continue;
    count = count_;
    call_(context_, count - static_cast<int>(left));
    ++ran;
    seen = tasks_.load();  // still of this round: it waits for what has run here to be counted
  }
  if (ran && done_.fetch_add(ran) + ran == count && waiting_) {
    std::lock_guard<std::mutex> lock(mutex_);  // the caller is not between its check and its sleep
    ended_.notify_one();
  }
}

void Pool::start(int n, Call call, const void* context) {
  call_ = call;
  context_ = context;
  count_ = n;
  done_ = 0;
  tasks_ = ((tasks_ >> 32) + 1) << 32 | static_cast<uint32_t>(n);
  if (sleepers_ != 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }  // no worker is between its check and its sleep
    wake_.notify_all();
  }
  drain();
  const auto all_done = [&] { return done_ == n; };
  if (spin_until(kCallerSpins, all_done)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  waiting_ = true;
  ended_.wait(lock, all_done);
  waiting_ = false;
}

void Pool::work() {
  const auto called = [this] { return open() || stop_; };
  for (;;) {
    if (!spin_until(kWorkerSpins, called)) {
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleepers_;
      wake_.wait(lock, called);
      --sleepers_;
    }
    if (stop_) return;
    drain();
  }
}

}  // namespace vcuda
