// The device as the backend sees it: checked calls, memory of one model, and launches that may
// overlap their predecessor.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/error.h"

namespace vcuda::gpu {

// VCUDA_E_MEMORY or VCUDA_E_DEVICE with the operation's name.
inline void check(cudaError_t e, const char* operation) {
  if (e == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky must not be found by the next call
  fail(e == cudaErrorMemoryAllocation ? VCUDA_E_MEMORY : VCUDA_E_DEVICE, "%s: %s", operation,
       cudaGetErrorString(e));
}

// Faults for tests: the environment variable's value n makes the n-th call fail, counted by its
// thread since the variable got this value.
class Injected {
 public:
  explicit Injected(const char* variable) : variable_(variable) {}
  bool due() {
    const char* text = std::getenv(variable_);
    if (value_ != (text ? text : "")) value_ = text ? text : "", count_ = 0;
    return text && ++count_ == std::strtol(text, nullptr, 10);
  }

 private:
  const char* variable_;
  std::string value_;
  long count_ = 0;
};

inline bool allocation_must_fail() {
  thread_local Injected fault("VLLM_CUDA_FAIL_ALLOCATION");
  return fault.due();
}
inline bool launch_must_fail() {
  thread_local Injected fault("VLLM_CUDA_FAIL_LAUNCH");
  return fault.due();
}

// A call that takes memory.
template <class Call>
cudaError_t taking_memory(const Call& call) {
  return allocation_must_fail() ? cudaErrorMemoryAllocation : call();
}

// Host memory to the device, in the stream's order and finished on return. (cudaMemcpy returns when
// pageable bytes are in a staging buffer, and this stream does not wait for the default one.)
inline void upload(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "upload of weights");
  check(cudaStreamSynchronize(stream), "upload of weights");
}

// Device memory that is given back together. Small pieces share large ones: a model has hundreds of
// vectors.
class Arena {
 public:
  ~Arena() { clear(); }
  void* alloc(size_t bytes) {
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    if (bytes == 0) bytes = kAlign;
    if (bytes > kBlock / 4) return own(bytes);
    if (left_ < bytes) block_ = static_cast<char*>(own(kBlock)), left_ = kBlock;
    char* p = block_ + (kBlock - left_);
    left_ -= bytes;
    return p;
  }
  void clear() {
    for (void* p : owned_) cudaFree(p);
    owned_.clear();
    block_ = nullptr, left_ = 0;
  }

 private:
  static constexpr size_t kAlign = 256, kBlock = 8u << 20;
  void* own(size_t bytes) {
    owned_.reserve(owned_.size() + 1);
    void* p = nullptr;
    const cudaError_t e = taking_memory([&] { return cudaMalloc(&p, bytes); });
    if (e != cudaSuccess) {
      cudaGetLastError();
      fail(e == cudaErrorMemoryAllocation ? VCUDA_E_MEMORY : VCUDA_E_DEVICE,
           "device memory, %zu bytes asked for: %s", bytes, cudaGetErrorString(e));
    }
    owned_.push_back(p);
    return p;
  }
  std::vector<void*> owned_;
  char* block_ = nullptr;
  size_t left_ = 0;
};

// Memory freed at the end of a scope.
class Temporary {
 public:
  explicit Temporary(size_t bytes) {
    check(taking_memory([&] { return cudaMalloc(&p_, bytes ? bytes : 1); }),
          "device memory of an upload");
  }
  Temporary(Temporary&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
  Temporary(const Temporary&) = delete;
  ~Temporary() { cudaFree(p_); }
  void* get() const { return p_; }

 private:
  void* p_ = nullptr;
};

// Pinned host memory that the device can read and write.
template <class T>
class Mapped {
 public:
  Mapped() = default;
  Mapped(const Mapped&) = delete;
  ~Mapped() { cudaFreeHost(p_); }
  void resize(size_t count) {  // keeps nothing
    if (count <= count_) return;
    cudaFreeHost(std::exchange(p_, nullptr));
    count_ = 0;
    check(taking_memory([&] { return cudaHostAlloc(&p_, count * sizeof(T), cudaHostAllocMapped); }),
          "pinned host memory");
    count_ = count;
  }
  T* get() const { return p_; }
  T* operator->() const { return p_; }

 private:
  T* p_ = nullptr;
  size_t count_ = 0;
};

class Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event(const Event&) = delete;
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  void create() {
    check(taking_memory([&] { return cudaEventCreate(&event_); }), "event");
  }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// How a launch's blocks are grouped.
struct Clusters {
  unsigned x = 1, y = 1;  // blocks of a cluster
  bool spread = false;    // each on another multiprocessor, where there are enough
  Clusters(int blocks) : x(static_cast<unsigned>(blocks)) {}
  // Small blocks would all lie on the few multiprocessors that the launch in front leaves idle.
  static Clusters spread_rows(int m) {
    Clusters c(1);
    c.y = static_cast<unsigned>(m), c.spread = true;
    return c;
  }
};

class Stream {
 public:
  void create(bool overlap) {
    check(taking_memory([&] { return cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }),
          "stream");
    overlap_ = overlap;
  }
  ~Stream() {
    if (stream_) cudaStreamDestroy(stream_);
  }
  operator cudaStream_t() const { return stream_; }

  // kernel<<<grid, block, shared>>>(arguments...)
  template <class... Parameters, class... Arguments>
  void launch(const char* operation, void (*kernel)(Parameters...), dim3 grid, dim3 block,
              size_t shared, Clusters clusters, Arguments... arguments) const {
    cudaLaunchAttribute attributes[3] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared,
    config.stream = stream_, config.attrs = attributes;
    if (overlap_) {
      attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (clusters.x * clusters.y > 1) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      auto& blocks = attributes[config.numAttrs++].val.clusterDim;
      blocks.x = clusters.x, blocks.y = clusters.y, blocks.z = 1;
    }
    if (clusters.spread) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
      attributes[config.numAttrs++].val.clusterSchedulingPolicyPreference =
          cudaClusterSchedulingPolicySpread;
    }
    check(launch_must_fail()
              ? cudaErrorLaunchOutOfResources
              : cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
          operation);
    if (profiling_) note(operation);
  }

  // Times of the launches since begin_profile, by operation. Measuring keeps launches from
  // overlapping.
  void begin_profile() {
    profiling_ = true;
    notes_.clear();
    note("");
  }
  std::string end_profile() {
    profiling_ = false;
    std::map<std::string, std::pair<int, double>> total;
    for (size_t i = 1; i < notes_.size(); ++i) {
      float ms = 0;
      check(cudaEventElapsedTime(&ms, notes_[i - 1].second, notes_[i].second), "profile");
      auto& [count, us] = total[notes_[i].first];
      ++count, us += ms * 1000.0;
    }
    notes_.clear();
    std::string text;
    for (const auto& [name, t] : total) {
      char line[160];
      std::snprintf(line, sizeof line, "%-24s %4d launches %9.1f us, %7.2f us each\n", name.c_str(),
                    t.first, t.second, t.second / t.first);
      text += line;
    }
    return text;
  }

 private:
  void note(const char* operation) const {
    Event event;
    event.create();
    check(cudaEventRecord(event, stream_), "profile");
    notes_.emplace_back(operation, std::move(event));
  }

  cudaStream_t stream_ = nullptr;
  bool overlap_ = false, profiling_ = false;
  mutable std::vector<std::pair<std::string, Event>> notes_;
};

}  // namespace vcuda::gpu
