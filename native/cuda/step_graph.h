// A step captured as a graph. What changes from step to step are the arguments of its first kernel.
#pragma once

#include <utility>

#include "cuda/device.h"

namespace vcuda::gpu {

class StepGraph {
 public:
  StepGraph() = default;
  StepGraph(StepGraph&& other) noexcept
      : graph_(std::exchange(other.graph_, nullptr)),
        exec_(std::exchange(other.exec_, nullptr)),
        first_(other.first_) {}
  StepGraph& operator=(StepGraph&& other) noexcept {
    std::swap(graph_, other.graph_), std::swap(exec_, other.exec_), std::swap(first_, other.first_);
    return *this;
  }
  ~StepGraph() {
    if (exec_) cudaGraphExecDestroy(exec_);
    if (graph_) cudaGraphDestroy(graph_);
  }

  // Ends the capture on `stream`, which is over whether this works or not.
  void capture(cudaStream_t stream) {
    check(cudaStreamEndCapture(stream, &graph_), "capture");
    size_t roots = 1;
    check(cudaGraphGetRootNodes(graph_, &first_, &roots), "graph");
    check(taking_memory([&] { return cudaGraphInstantiate(&exec_, graph_, 0); }), "graph");
  }

  // arguments: of the first kernel, in order.
  template <class... Arguments>
  void launch(cudaStream_t stream, Arguments... arguments) const {
    void* pointers[] = {&arguments...};
    cudaKernelNodeParams params;
    check(cudaGraphKernelNodeGetParams(first_, &params), "graph");
    params.kernelParams = pointers;
    check(cudaGraphExecKernelNodeSetParams(exec_, first_, &params), "graph");
    check(cudaGraphLaunch(exec_, stream), "graph");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  cudaGraphNode_t first_ = nullptr;
};

}  // namespace vcuda::gpu
