// The thread pool: each task exactly once and finished when run returns, whatever the number of
// threads, with pauses between rounds in which the workers fall asleep, and with tasks during which
// the caller does. Prints one line a failure; exit 1 then.
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "cpu/pool.h"

namespace {

constexpr size_t kMuch = 1 << 20;  // bytes a task touches, it says: worth a thread

int failures = 0;

// Rounds of growing and shrinking size, each over plain memory: a task that is lost, run twice or
// still running shows in the sums, and a thread sanitizer sees every unordered access.
void rounds(int threads, int count, int pause_every, int slow_task) {
  vcuda::Pool pool(threads);
  std::vector<long long> sums(40);
  for (int round = 0; round < count; ++round) {
    const int n = 2 + round * 7 % 38;
    pool.run(n, kMuch, [&](int i) {
      if (i == slow_task) std::this_thread::sleep_for(std::chrono::microseconds(600));
      sums[i] += round + i;
    });
    for (int i = 0; i < 40; ++i) {
      const long long expected = i < n ? round + i : 0;
      if (sums[i] != expected && ++failures < 10)
        std::printf("%d threads, round %d, task %d of %d: %lld instead of %lld\n", threads, round,
                    i, n, sums[i], expected);
      sums[i] = 0;
    }
    if (pause_every && round % pause_every == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(400));
  }
}

}  // namespace

int main() {
  for (int threads : {1, 2, 3, 8}) {
    rounds(threads, 20000, 0, -1);
    rounds(threads, 300, 3, -1);
    rounds(threads, 200, 0, 0);  // the caller sleeps in the first task it takes, or waits for it
    rounds(threads, 200, 50, 1);
  }
  for (int i = 0; i < 200; ++i) vcuda::Pool idle(4);  // ends before its workers have begun
  return failures != 0;
}
