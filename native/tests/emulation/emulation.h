// Blocks of CUDA threads on one thread of the host.
//
// Each thread of a block is a fibre with a stack of its own, which runs until it waits for others.
// Whose turn it is a seed decides, and warps drift apart: in a round only some of them run. So what
// a missing barrier leaves to chance really comes in different orders; a block of a cluster may
// begin when the other one can do nothing without it. The same with copies: one lands at once or as
// late as its thread's wait allows. A block sees what blocks before it wrote; only the blocks of a
// cluster, consecutive ones of a row of the grid, run together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace emulation {

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

// A block's dynamic shared memory, or a cluster's: NaN when it starts; nothing past `used` bytes
// may change.
struct Shared {
  void* memory;
  size_t used, size;
};

// Runs kernel once a thread; null, or what a thread did that none may.
const char* launch(unsigned seed, dim3 grid, unsigned threads, Shared shared,
                   const std::function<void()>& kernel, unsigned cluster = 1);

// For kernels.
unsigned thread_of_cluster();
unsigned cluster_number();  // of all that ran so far
void meet_block();
void wait_until(const std::function<bool()>& done);
void happened();                        // what another thread may wait for
void fail(const char* what);            // what launch returns
const uint32_t* meet_warp(uint32_t x);  // what the 32 lanes brought, until the next but one meeting
uint32_t shared_offset(const void* p);
void load_shared(void* to, uint32_t offset, size_t bytes);
void copy_async(void* to, const void* from, size_t bytes);
void copy_commit();
void copy_wait(size_t pending);  // returns when all but so many groups of this thread's have landed

}  // namespace emulation
