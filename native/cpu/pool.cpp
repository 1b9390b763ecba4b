#include "cpu/pool.h"

#include <system_error>

namespace vcuda {
namespace {

// Rounds follow each other within microseconds during a step, so a worker spins for a while before
// it sleeps.
constexpr int kSpins = 20000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
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
    round_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void Pool::drain() {
  for (int i; (i = next_.fetch_add(1)) < tasks_;) call_(context_, i);
}

void Pool::start(int n, Call call, const void* context) {
  call_ = call;
  context_ = context;
  tasks_ = n;
  next_ = 0;
  busy_ = static_cast<int>(workers_.size());
  {
    std::lock_guard<std::mutex> lock(
        mutex_);  // no worker can miss the round between its check and its sleep
    round_.fetch_add(1);
  }
  wake_.notify_all();
  drain();
  for (int spin = 0; busy_.load() != 0; ++spin) spin < kSpins ? pause() : std::this_thread::yield();
}

void Pool::work() {
  unsigned seen = 0;
  for (;;) {
    for (int spin = 0; round_.load() == seen && spin < kSpins; ++spin) pause();
    if (round_.load() == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return round_.load() != seen; });
    }
    seen = round_.load();  // the next round starts only after this worker has left this one
    if (stop_) return;
    drain();
    busy_.fetch_sub(1);
  }
}

}  // namespace vcuda
