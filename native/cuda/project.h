// Q4 projections: how a matrix is cut (its Q4Shape), its packing, and the launch.
#pragma once

#include <memory>
#include <vector>

#include "cuda/device.h"
#include "kernels/project_q4_ring.cuh"
#include "model/backend.h"

namespace vcuda::gpu {

struct Q4Matrix {
  Q4Shape shape;
  bool ring;     // project_q4_ring.cuh, else project_q4.cuh
  int clusters;  // ring: clusters of the grid
  uint8_t* data;
};

struct Limits {
  int multiprocessors = 0;
  int shared = 0;    // bytes of a ring block
  bool ring = false; // the device has the instructions
};

// Once per device: raises the kernels' shared memory limit.
void prepare_projections(const Limits&);

// The best known shape for rows x 32*groups; VLLM_CUDA_Q4_SHAPE="warps,cluster,tiles" names another one, for tests and sweeps.
Q4Matrix plan_matrix(int rows, int groups, const Limits&);

// The n-th of all compiled cuts, 0 being the simple kernel's; clusters is 0 when it does not fit. False past the last.
bool plan_variant(int n, int rows, int groups, const Limits&, Q4Matrix&);

// Packs stacked tensors; data comes from alloc.
void pack_matrix(Q4Matrix&, const std::vector<Tensor>& stacked, Arena&, const Stream&);

// act: quantized rows; y [m, ld]. floats: rows of the same projection that the ring computes beside its own.
void project_q4(const Q4Matrix&, const Limits&, const uint8_t* act, int m, float* y, int ld, bool add, const FloatRows& floats, const Stream&);

}  // namespace vcuda::gpu
