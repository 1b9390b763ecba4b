// Q4 projections: how a matrix is cut (its Q4Shape), its packing, and the launch.
#pragma once

#include <vector>

#include "cuda/device.h"
#include "kernels/ring_plan.cuh"
#include "model/backend.h"

namespace vcuda::gpu {

struct Q4Matrix {
  Q4Shape shape;
  bool ring;     // ring.cuh, else project_q4.cuh
  int clusters;  // ring: clusters of the grid
  uint8_t* data;
  GatedRows gated;  // gates and ups: the memory that clusters share
  NextWeights next;
};

struct Limits {
  int multiprocessors = 0;
  int shared = 0;  // bytes of a ring block
  int clusters =
      0;  // ring blocks' clusters that run at once; 0: the device has not the instructions
};

// What this device can do, with code that was compiled for Hopper or not; raises the kernels'
// shared memory limit.
Limits find_limits(const cudaDeviceProp&, bool hopper);

// The best cut for rows x 32*groups: the measured one (cuts.h), else by a rule; VLLM_CUDA_Q4_TILES
// names another one, for tests and sweeps (0: the simple kernel). gated: the rows are gates, then
// ups; in units (Q4Shape::gated) where the cut's kernel takes them.
Q4Matrix plan_matrix(int rows, int groups, const Limits&, bool gated = false);

// The n-th of all compiled cuts, 0 being the simple kernel's; clusters is 0 when it does not fit.
// False past the last.
bool plan_variant(int n, int rows, int groups, const Limits&, Q4Matrix&);

// Packs stacked tensors; data comes from the arena.
void pack_matrix(Q4Matrix&, const std::vector<Tensor>& stacked, Arena&, const Stream&);

// The projection of the first is the last one before that of the second.
void use_after(Q4Matrix&, const Q4Matrix& next);

// Whether the projection's own kernel can make the norm in front of it.
bool takes_norm(const Q4Matrix&, int m, const Limits&);

// What all rows of a step become.
struct Projected {
  float* y;  // [m, ld]; NULL: of a matrix in units only swiglu
  int ld;
  bool add;          // y +=
  FloatRows beside;  // rows of the same projection that the ring computes too
  // Of a matrix in units: [m, rows / 2], and the same quantized; NULL together: only y.
  float* swiglu;
  uint8_t* swiglu_act;
};

// Rows [8*block, ...) of m. act: all quantized rows; or norm: rows before their norm, where
// takes_norm.
Projection projection(const Q4Matrix&, int block, const uint8_t* act, const NormInput& norm, int m,
                      const Projected& to);

void project_q4(const Q4Matrix&, const Limits&, const Projection&, const Stream&);

}  // namespace vcuda::gpu
