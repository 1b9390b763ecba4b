#include "emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

namespace emulation {

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr size_t kStack = 128 << 10, kWarp = 32;

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Fibre {
  std::unique_ptr<char[]> stack;  // none: to be started
  jmp_buf at;
  unsigned index = 0;
  bool done = false;
  long warp_meetings = 0, block_meetings = 0;
  std::deque<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<Copy> open;
};

struct Warp {
  uint32_t brought[2][kWarp];  // a lane may be one meeting ahead of those that still read
  long arrivals;
};

std::vector<Fibre> fibres;
std::vector<Warp> warps;
std::vector<long> arrivals;  // at each block's barrier
long events;                 // anything that may let another thread go on
dim3 first_block;            // of the cluster
unsigned clusters;           // so far, this one counted
Fibre* running;
jmp_buf scheduler;
const std::function<void()>* body;
Shared memory;
const char* fault;
std::mt19937 chance;

// _longjmp and not swapcontext, which is a system call a switch.
__attribute__((noinline)) void jump(jmp_buf from, jmp_buf to) {
  if (!_setjmp(from)) _longjmp(to, 1);
}

void yield() { jump(running->at, scheduler); }

void run_blocks() {  // a fibre serves one thread after the other
  for (;;) {
    (*body)();
    running->done = true, ++events;
    yield();
  }
}

__attribute__((noinline)) void resume(Fibre& f) {
  running = &f;
  threadIdx = dim3(f.index % blockDim.x);
  blockIdx = dim3(first_block.x + f.index / blockDim.x, first_block.y);
  if (f.stack) return jump(scheduler, f.at);
  f.stack = std::make_unique<char[]>(kStack);
  ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = f.stack.get(), start.uc_stack.ss_size = kStack, start.uc_link = nullptr;
  makecontext(&start, run_blocks, 0);
  if (!_setjmp(scheduler)) setcontext(&start);
}

void run_cluster(unsigned threads) {
  std::memset(memory.memory, 0xff, memory.size);
  warps.assign((threads + kWarp - 1) / kWarp, Warp{});
  arrivals.assign(threads / blockDim.x, 0);
  std::vector<Fibre*> left;
  for (unsigned i = 0; i < threads; ++i) {
    Fibre& f = fibres[i];
    f.index = i, f.done = false, f.warp_meetings = f.block_meetings = 0;
    f.groups.clear(), f.open.clear();
    left.push_back(&f);
  }
  ++clusters;
  // One block may begin when nothing goes on in the others any more.
  const unsigned blocks = threads / blockDim.x;
  unsigned late = blocks == 1 ? 1 : static_cast<unsigned>(chance() % (2 * blocks));
  // Some warp sleeps, for much longer than warps drift apart otherwise, while others can go on.
  unsigned asleep = 0, rounds = 0;
  while (!left.empty() && !fault) {
    std::shuffle(left.begin(), left.end(), chance);
    const long before = events;
    const auto half = chance(), awake = chance() % 2 ? half : half & chance();
    if (rounds-- == 0)
      asleep = static_cast<unsigned>(chance() % warps.size()),
      rounds = static_cast<unsigned>(chance() % 200);
    for (Fibre* f : left) {
      const unsigned warp = f->index / kWarp;
      if (f->index / blockDim.x != late && warp != asleep && awake >> warp % 32 & 1) resume(*f);
    }
    if (events == before) {  // perhaps they wait for the others
      for (Fibre* f : left)
        if (f->index / blockDim.x != late) resume(*f);
      if (events == before && late < blocks) late = blocks, ++events;
    }
    if (events == before) fault = "threads wait at a barrier that others do not reach";
    left.erase(std::remove_if(left.begin(), left.end(), [](Fibre* f) { return f->done; }),
               left.end());
  }
  if (fault) fibres.clear();  // they are in the middle of the kernel
  const unsigned char* bytes = static_cast<const unsigned char*>(memory.memory);
  if (!fault && std::any_of(bytes + memory.used, bytes + memory.size,
                            [](unsigned char b) { return b != 0xff; }))
    fault = "a write past the end of shared memory";
}

void land(const Copy& c) { std::memcpy(c.to, c.from, c.bytes); }

}  // namespace

const char* launch(unsigned seed, dim3 grid, unsigned threads, Shared shared,
                   const std::function<void()>& kernel, unsigned cluster) {
  chance.seed(seed);
  blockDim = dim3(threads), gridDim = grid, memory = shared, body = &kernel, fault = nullptr;
  for (unsigned y = 0; y < grid.y && !fault; ++y)
    for (unsigned x = 0; x < grid.x && !fault; x += cluster) {
      if (fibres.size() < threads * cluster) fibres.resize(threads * cluster);
      first_block = dim3(x, y);
      run_cluster(threads * cluster);
    }
  return fault;
}

unsigned thread_of_cluster() { return running->index; }
unsigned cluster_number() { return clusters; }

void meet_block() {
  long& mine = arrivals[running->index / blockDim.x];
  ++mine, ++events;
  const long all = static_cast<long>(blockDim.x) * ++running->block_meetings;
  while (mine < all) yield();
}

void wait_until(const std::function<bool()>& done) {
  while (!done()) yield();
}

void happened() { ++events; }

void fail(const char* what) { fault = what; }

const uint32_t* meet_warp(uint32_t x) {
  Warp& warp = warps[running->index / kWarp];
  uint32_t* brought = warp.brought[running->warp_meetings % 2];
  brought[running->index % kWarp] = x;
  ++warp.arrivals, ++events;
  const long all = static_cast<long>(kWarp) * ++running->warp_meetings;
  while (warp.arrivals < all) yield();
  return brought;
}

uint32_t shared_offset(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - static_cast<char*>(memory.memory));
}

void load_shared(void* to, uint32_t offset, size_t bytes) {
  if (offset % bytes != 0) fault = "a read of shared memory that is not aligned";
  else if (offset + bytes > memory.used) fault = "a read past the end of shared memory";
  else std::memcpy(to, static_cast<char*>(memory.memory) + offset, bytes);
}

void copy_async(void* to, const void* from, size_t bytes) {
  const uint32_t at = shared_offset(to);
  if (at % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0)
    fault = "an asynchronous copy that is not aligned";
  else if (at + bytes > memory.used) fault = "an asynchronous copy past the end of shared memory";
  else if (chance() % 2) land({to, from, bytes});
  else running->open.push_back({to, from, bytes});
}

void copy_commit() {
  running->groups.push_back(std::move(running->open));
  running->open.clear();
}

void copy_wait(size_t pending) {
  for (; running->groups.size() > pending; running->groups.pop_front())
    std::for_each(running->groups.front().begin(), running->groups.front().end(), land);
}

}  // namespace emulation
