// The CUDA backend: the operations of model/backend.h as launches on one stream.
//
// A step of m rows is captured in a graph when it first runs; afterwards the operations of a step
// do nothing and end() launches the graph. What changes from step to step (tokens, position, which
// state) is in StepParams. VLLM_CUDA_STREAMED=1 launches every operation instead.
#include "model/backend.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "cuda/device.h"
#include "cuda/project.h"
#include "cuda/step_graph.h"
#include "kernels/attention.cuh"
#include "kernels/embed.cuh"
#include "kernels/fill.cuh"
#include "kernels/finish.cuh"
#include "kernels/gdn.cuh"
#include "kernels/gdn_any.cuh"
#include "kernels/project_float.cuh"
#include "kernels/quantize.cuh"
#include "kernels/rms_norm.cuh"
#include "kernels/swiglu.cuh"
#include "kernels/synth.cuh"
#include "model/error.h"
#include "model/tensor.h"

#ifndef VCUDA_ARCHITECTURES
#define VCUDA_ARCHITECTURES "unknown"
#endif

namespace vcuda {
namespace gpu {

static bool environment_flag(const char* name, bool otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strcmp(text, "0") != 0 : otherwise;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int device) {
    int count = 0;
    check(cudaGetDeviceCount(&count), "open");
    if (device < 0 || device >= count)
      fail(VCUDA_E_DEVICE, "device is %d, %d CUDA device(s) are here", device, count);
    device_ = device;
    select();
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, device), "open");
    cudaFuncAttributes attributes;
    const cudaError_t e =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel_embed));
    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction) {
      cudaGetLastError();
      fail(VCUDA_E_DEVICE,
           "%s (compute capability %d.%d): this library has code for " VCUDA_ARCHITECTURES, p.name,
           p.major, p.minor);
    }
    check(e, "open");
    // Code for an older device (80-virtual, for tests of that path) has none of Hopper's
    // instructions.
    const bool hopper = attributes.ptxVersion >= 90;
    limits_ = find_limits(p, hopper);
    stream_.create(hopper && !environment_flag("VLLM_CUDA_SERIAL", false));
    shared_most_ = p.sharedMemPerBlockOptin;
    for (const AttentionKernel& k : kAttentionKernels)
      check(cudaFuncSetAttribute(reinterpret_cast<const void*>(k.kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_most_)),
            "open");
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel_gdn_any),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_most_)),
          "open");
    // One split between cache and shared memory for all kernels: another one would have each
    // multiprocessor drain in between.
    std::vector<const void*> kernels{reinterpret_cast<const void*>(kernel_embed),
                                     reinterpret_cast<const void*>(kernel_rms_norm),
                                     reinterpret_cast<const void*>(kernel_swiglu),
                                     reinterpret_cast<const void*>(kernel_gdn<16, 2, 1>),
                                     reinterpret_cast<const void*>(kernel_gdn<8, 1, 1>),
                                     reinterpret_cast<const void*>(kernel_gdn<16, 1, 2>),
                                     reinterpret_cast<const void*>(kernel_gdn<8, 1, 2>),
                                     reinterpret_cast<const void*>(kernel_gdn_any),
                                     reinterpret_cast<const void*>(kernel_attention_prepare),
                                     reinterpret_cast<const void*>(kernel_attention_merge),
                                     reinterpret_cast<const void*>(kernel_check_finite)};
    for (const AttentionKernel& k : kAttentionKernels)
      kernels.push_back(reinterpret_cast<const void*>(k.kernel));
    for (const void* kernel : kernels)
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared),
            "open");
    params_ = static_cast<StepParams*>(forever_.alloc(sizeof(StepParams)));
    bad_.resize(1);
    profile_ = environment_flag("VLLM_CUDA_PROFILE", false);
    streamed_ = profile_ || environment_flag("VLLM_CUDA_STREAMED", false);
    for (Event& event : events_) event.create();
  }

  ~CudaBackend() override {
    select_quietly();
    CudaBackend::free_all();
  }

  void* alloc(size_t bytes) override {
    select();
    return arena_.alloc(bytes);
  }

  void free_all() override {
    select_quietly();
    abandon_capture();
    cudaStreamSynchronize(stream_);
    graphs_.clear();
    matrices_.clear();
    arena_.clear();
    partial_arena_.clear();
    partial_ = nullptr, partial_floats_ = 0;
    partial_row_floats_ = 0;
  }

  size_t act_bytes(int cols, int rows) const override {
    const int groups = cols / arith::kGroup, whole = rows / kRowBlock, rest = rows % kRowBlock;
    return act_block_offset(groups, whole) + static_cast<size_t>(groups) * act_stride(rest);
  }

  size_t kv_bytes(const Config& c, int context) const override {
    partial_row_floats_ =
        static_cast<size_t>(c.q_heads) * attention_units(context) * partial_pitch(c.head_dim);
    return 2 * head_floats(c, context) * c.kv_heads * sizeof(float);
  }

  void zero(void* p, size_t bytes) override {
    select();
    check(cudaMemsetAsync(p, 0, bytes, stream_), "zero");
  }

  void clear_cache(void* kv, size_t bytes) override { zero(kv, bytes); }

  void fill(void* p, size_t bytes, uint32_t word) override {
    select();
    if (bytes)
      stream_.launch("fill", kernel_fill, dim3(256), dim3(256), 0, 1, static_cast<uint32_t*>(p),
                     bytes / 4, word);
  }

  void fill_kv(const Config& c, void* kv, int context, int position, uint32_t word) override {
    select();
    const size_t head = head_floats(c, context);
    stream_.launch("fill", kernel_fill_kv, dim3(256), dim3(256), 0, 1, static_cast<uint32_t*>(kv),
                   head, static_cast<size_t>(c.kv_heads), c.head_dim, position, word);
  }

  void fill_scratch(uint32_t word) override {
    if (partial_) fill(partial_, partial_floats_ * sizeof(float), word);
  }

  void read(void* host, const void* p, size_t bytes) override {
    select();
    check(cudaMemcpyAsync(host, p, bytes, cudaMemcpyDeviceToHost, stream_), "read");
    check(cudaStreamSynchronize(stream_), "read");
  }

  float* upload_floats(const std::vector<float>& v) override {
    float* p = static_cast<float*>(alloc(v.size() * sizeof(float)));
    upload(p, v.data(), v.size() * sizeof(float), stream_);
    return p;
  }

  void* upload_embedding(const Tensor& e) override {
    const size_t n = static_cast<size_t>(e.rows) * static_cast<size_t>(e.cols),
                 bytes = n * (e.t->type == VCUDA_F32 ? 4 : 2);
    void* p = alloc(bytes);
    if (e.t->data) upload(p, e.t->data, bytes, stream_);
    else synth(*e.t, n, false, p);
    return p;
  }

  Part upload_matrix(const std::vector<Tensor>& stacked, bool gated) override {
    select();
    Part part;
    part.q4 = stacked[0].t->type == VCUDA_Q4;
    for (const Tensor& t : stacked) part.rows += static_cast<int>(t.rows);
    if (part.q4) {
      matrices_.push_back(std::make_unique<Q4Matrix>(plan_matrix(
          part.rows, static_cast<int>(stacked[0].cols) / arith::kGroup, limits_, gated)));
      pack_matrix(*matrices_.back(), stacked, arena_, stream_);
      part.data = matrices_.back().get();
      // Weights come in the order in which a step uses them.
      if (const size_t n = matrices_.size(); n > 1) use_after(*matrices_[n - 2], *matrices_[n - 1]);
    } else {
      part.data = upload_float_matrix(stacked, part.rows);
    }
    return part;
  }

  void begin(const StepInput& in) override {
    select();
    // Everything that can run out of memory comes before the capture.
    const size_t floats = partial_row_floats_ * static_cast<size_t>(in.m);
    if (floats > partial_floats_) {
      graphs_.clear();  // they hold the old address
      partial_arena_.clear();
      partial_ = nullptr, partial_floats_ = 0;
      partial_ = static_cast<float*>(partial_arena_.alloc(floats * sizeof(float)));
      partial_floats_ = floats;
    }
    if (unended_) check(cudaStreamSynchronize(stream_), "step");  // it may still write bad_
    step_.position = in.position;
    step_.s_from = in.from->s, step_.conv_from = in.from->conv, step_.s_to = in.to->s,
    step_.conv_to = in.to->conv;
    if (in.tokens) std::memcpy(step_.tokens, in.tokens, sizeof(int) * static_cast<size_t>(in.m));
    *bad_.get() = 0;
    unended_ = true;
    graph_ = {in.m, in.graph};
    behind_projection_ = false;
    const bool direct = streamed_ || in.graph < 0;
    replay_ = !direct && graphs_.count(graph_) > 0;
    // Outside of graphs an operation may come without the embedding, which brings the parameters.
    if (direct)
      check(cudaMemcpyAsync(params_, &step_, sizeof step_, cudaMemcpyHostToDevice, stream_),
            "step");
    if (direct) {
      check(cudaEventRecord(events_[0], stream_), "step");
      if (profile_) stream_.begin_profile();
    }
    if (direct || replay_) return;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    capturing_ = true;
  }

  void cancel() noexcept override {
    select_quietly();
    abandon_capture();
  }

  void embed(const Weights& w, const Config& c, const StepInput& in, float* x) override {
    embed_ = {params_, w.embedding, w.embedding_type, c.hidden, in.m, x};
    launch("embed", kernel_embed, dim3(u(embed_.parts()), u(in.m)), dim3(256), 0, embed_, step_);
  }

  void rms_norm(const float* x, const float* w, int n, float eps, int m, Rows y) override {
    const NormArgs a{x, w, y.x, static_cast<uint8_t*>(y.act), n, m, eps};
    launch_rows("rms_norm", kernel_rms_norm, a.parts(), m, kNormThreads, a);
  }

  void project(const Linear& l, Rows x, int m, float* y) override { apply(l, x, {}, m, y, false); }
  void project_add(const Linear& l, Rows y, int m, float* x) override {
    apply(l, y, {}, m, x, true);
  }
  void norm_project(const float* x, const float* w, float eps, const Linear& l, int m, Rows h,
                    float* y) override {
    const NormInput norm = norm_of(x, w, eps, l, m, h);
    apply(l, h, norm, m, y, false);
  }
  void norm_swiglu(const float* x, const float* w, float eps, const Linear& l, int m, Rows h,
                   float* gate_up, Rows out) override {
    if (!in_units(l)) return Backend::norm_swiglu(x, w, eps, l, m, h, gate_up, out);
    const NormInput norm = norm_of(x, w, eps, l, m, h);
    apply(l, h, norm, m, nullptr, false, out);
  }

  void gdn(const Layer& l, const Config& c, const StepInput& in, float* rows, Rows out) override {
    GdnArgs a{};
    a.in = rows, a.conv = l.gdn.conv, a.a_neg = l.gdn.a_neg, a.dt_bias = l.gdn.dt_bias,
    a.norm = l.gdn.norm;
    a.s_offset = static_cast<size_t>(l.index) * c.s_size(),
    a.conv_offset = static_cast<size_t>(l.index) * c.conv_size();
    a.out = out.x, a.act = static_cast<uint8_t*>(out.act);
    a.m = in.m, a.ld_in = c.gdn_rows(), a.k_heads = c.gdn_k_heads, a.v_heads = c.gdn_v_heads,
    a.repeat = c.gdn_v_heads / c.gdn_k_heads, a.dk = c.gdn_k_dim, a.dv = c.gdn_v_dim;
    a.taps = c.conv_kernel, a.q_factor = 1.0f / std::sqrt(static_cast<float>(c.gdn_k_dim)),
    a.eps = c.rms_eps;
    if (!in_registers(c))
      launch("gdn", kernel_gdn_any, dim3(u(a.v_heads)), dim3(kGdnAnyThreads),
             sizeof(float) * static_cast<size_t>(gdn_any_shared_floats(a.dk, a.dv)), a, params_);
    else if (limits_.clusters > 0)
      large_heads(c) ? launch_gdn<16, 1, 2>(a) : launch_gdn<8, 1, 2>(a);
    else large_heads(c) ? launch_gdn<16, 2, 1>(a) : launch_gdn<8, 1, 1>(a);
    if (a.dv % arith::kGroup != 0) quantize(out, c.value_dim(), in.m);
  }

  void attention(const Layer& l, const Config& c, const Weights& w, const StepInput& in, void* kv,
                 float* rows, Rows out) override {
    AttentionArgs a{};
    a.in = rows, a.q_norm = l.attention.q_norm, a.k_norm = l.attention.k_norm,
    a.inv_freq = w.inv_freq;
    a.head_floats = head_floats(c, in.context);
    a.keys = static_cast<float*>(kv),
    a.values = a.keys + a.head_floats * static_cast<size_t>(c.kv_heads);
    a.partial = partial_, a.units = attention_units(in.context);
    a.out = out.x, a.act = static_cast<uint8_t*>(out.act);
    a.m = in.m, a.ld = c.attention_rows(), a.q_heads = c.q_heads, a.kv_heads = c.kv_heads,
    a.d = c.head_dim, a.half = c.rotary_dim / 2;
    a.eps = c.rms_eps, a.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    a.behind_projection = behind_projection_;
    const AttentionKernel* k =
        attention_kernel(a.d, a.m * a.per_kv(), static_cast<int>(shared_most_), a.room);
    if (!k)
      fail(VCUDA_E_INTERNAL, "attention: no kernel for %zu bytes of shared memory", shared_most_);
    launch("attention: prepare", kernel_attention_prepare,
           dim3(u(ceil_div(a.q_heads + a.kv_heads, 4)), u(a.m)), dim3(128), 0, a, params_);
    launch("attention", k->kernel, dim3(u(limits_.multiprocessors)), dim3(kAttentionThreads),
           sizeof(float) *
               static_cast<size_t>(attention_shared_floats(6 * k->many, k->v, a.room.piece)),
           a, params_);
    launch("attention: merge", kernel_attention_merge, dim3(u(a.q_heads), u(a.m)),
           dim3(u(ceil_div(a.d, 32) * 32)), 0, a, params_);
    if (a.d % arith::kGroup != 0) quantize(out, c.attention_dim(), in.m);
  }

  void swiglu(const float* gate_up, int n, int m, Rows out) override {
    const SwigluArgs a{gate_up, out.x, static_cast<uint8_t*>(out.act), n, m};
    launch_rows("swiglu", kernel_swiglu, ceil_div(n / arith::kGroup, 8), m, 256, a);
  }

  bool end(const Config& c, int m, const float* h, const float* logits, float* h_out,
           float* logits_out) override {
    const size_t hn = static_cast<size_t>(m) * static_cast<size_t>(c.hidden),
                 ln = static_cast<size_t>(m) * static_cast<size_t>(c.vocab);
    const CheckArgs finite{h, logits, hn, ln, bad_.get()};
    launch("check", kernel_check_finite, dim3(u(limits_.multiprocessors * 2)), dim3(256), 0,
           finite);
    if (capturing_) {
      StepGraph made;
      capturing_ = false;
      made.capture(stream_);
      graphs_[graph_] = std::move(made);
      replay_ = true;
    }
    if (replay_) {
      check(cudaEventRecord(events_[0], stream_), "step");
      graphs_.at(graph_).launch(stream_, embed_, step_);
    }
    check(cudaEventRecord(events_[1], stream_), "step");
    check(cudaStreamSynchronize(stream_), "step");
    unended_ = false;
    if (profile_) profile_text_ = stream_.end_profile();
    if (*static_cast<volatile int*>(bad_.get())) return false;
    check(cudaMemcpyAsync(h_out, h, hn * sizeof(float), cudaMemcpyDeviceToHost, stream_),
          "copy of the results");
    check(cudaMemcpyAsync(logits_out, logits, ln * sizeof(float), cudaMemcpyDeviceToHost, stream_),
          "copy of the results");
    check(cudaStreamSynchronize(stream_), "copy of the results");
    return true;
  }

  double step_seconds() override {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_[0], events_[1]), "step");
    return ms / 1000.0;
  }
  std::string profile() override { return profile_text_; }

  void read_s(const Config& c, const float* s, float* out) override {
    const int dk = c.gdn_k_dim, dv = c.gdn_v_dim;
    const std::vector<float> v = download(s, c.s_size());
    for (int h = 0; h < c.gdn_v_heads; ++h)
      for (int i = 0; i < dk; ++i)
        for (int n = 0; n < dv; ++n, ++out) {
          *out = v[static_cast<size_t>(h) * dk * dv +
                   static_cast<size_t>(gdn_index(in_registers(c), i, n, dv))];
        }
  }

  void read_conv(const Config& c, const float* conv, float* out) override {
    const size_t channels = static_cast<size_t>(c.conv_dim()),
                 history = static_cast<size_t>(c.conv_kernel - 1);
    const std::vector<float> v = download(conv, c.conv_size());
    for (size_t i = 0; i < channels; ++i)
      for (size_t j = 0; j < history; ++j) out[i * history + j] = v[j * channels + i];
  }

  void read_kv(const Config& c, const void* kv, int context, int position, bool keys,
               float* out) override {
    const size_t head = head_floats(c, context), d = static_cast<size_t>(c.head_dim);
    const size_t used = static_cast<size_t>(ceil_div(position, arith::kChunk)) * arith::kChunk * d;
    for (int h = 0; h < c.kv_heads; ++h) {
      const std::vector<float> v = download(
          static_cast<const float*>(kv) +
              (static_cast<size_t>(h) + (keys ? 0 : static_cast<size_t>(c.kv_heads))) * head,
          used);
      for (size_t t = 0; t < static_cast<size_t>(position); ++t, out += d) {
        if (!keys) {
          std::memcpy(out, v.data() + t * d, d * sizeof(float));
          continue;
        }
        const float* column = v.data() + t / arith::kChunk * d * arith::kChunk + t % arith::kChunk;
        for (size_t n = 0; n < d; ++n) out[n] = column[n * arith::kChunk];
      }
    }
  }

 private:
  static unsigned u(int n) { return static_cast<unsigned>(n); }
  // Heads whose S a block or two keep in registers.
  static bool large_heads(const Config& c) { return c.gdn_k_dim == 128; }
  static bool in_registers(const Config& c) {
    return c.gdn_k_dim == c.gdn_v_dim && (c.gdn_k_dim == 64 || c.gdn_k_dim == 128) &&
           c.conv_kernel == 4;
  }
  static size_t head_floats(const Config& c, int context) {
    return static_cast<size_t>(ceil_div(context, arith::kChunk)) * arith::kChunk *
           static_cast<size_t>(c.head_dim);
  }

  void select() { check(cudaSetDevice(device_), "device"); }
  void select_quietly() { cudaSetDevice(device_); }

  template <class... Parameters, class... Arguments>
  void launch(const char* operation, void (*kernel)(Parameters...), dim3 grid, dim3 block,
              size_t shared, Arguments... arguments) {
    launch_clusters(operation, kernel, grid, block, shared, 1, arguments...);
  }
  template <class... Parameters, class... Arguments>
  void launch_clusters(const char* operation, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                       size_t shared, Clusters clusters, Arguments... arguments) {
    behind_projection_ = false;
    if (!replay_) stream_.launch(operation, kernel, grid, block, shared, clusters, arguments...);
  }
  // A small operation: `parts` blocks a row.
  template <class Parameter>
  void launch_rows(const char* operation, void (*kernel)(Parameter), int parts, int m, int threads,
                   const Parameter& argument) {
    const bool spread = limits_.clusters > 0 && m > 1 && m <= kRowBlock;
    launch_clusters(operation, kernel, dim3(u(parts), u(m)), dim3(u(threads)), 0,
                    spread ? Clusters::spread_rows(m) : 1, argument);
  }

  template <int J, int C, int Split>
  void launch_gdn(const GdnArgs& a) {
    for (GdnArgs part = a; part.row0 < a.m; part.row0 += kRowBlock)
      launch_clusters("gdn", kernel_gdn<J, C, Split>, dim3(u(a.v_heads * Split)),
                      dim3(u(gdn_threads<J, C, Split>())), sizeof(GdnShared<J, Split>), Split, part,
                      params_);
  }

  // Float32 rows that ride on the Q4 rows' launch: behind them, where that is a ring.
  static const Part* float_rows_beside(const Linear& l, bool add) {
    const bool ride = l.parts.size() == 2 && !add && l.parts[0].q4 && !l.parts[1].q4 &&
                      static_cast<const Q4Matrix*>(l.parts[0].data)->ring;
    return ride ? &l.parts[1] : nullptr;
  }

  // Gates and ups whose projection can make their swiglu too.
  static bool in_units(const Linear& l) {
    return l.parts.size() == 1 && l.parts[0].q4 &&
           static_cast<const Q4Matrix*>(l.parts[0].data)->shape.gated;
  }

  // The norm in front of a projection: its input, where all of the projection is one ring that
  // makes it, else made here, into h.
  NormInput norm_of(const float* x, const float* w, float eps, const Linear& l, int m, Rows h) {
    if (replay_) return {};
    const Part* beside = float_rows_beside(l, false);
    const Part& first = l.parts[0];
    if (l.parts.size() == (beside ? 2 : 1) && first.q4 &&
        takes_norm(*static_cast<const Q4Matrix*>(first.data), m, limits_))
      return {x, w, eps};
    rms_norm(x, w, l.cols, eps, m, h);
    return {};
  }

  // Of x, or of the rows whose norm they are; swiglu: of gates and ups in units, the rest NULL.
  void apply(const Linear& l, Rows x, const NormInput& norm, int m, float* y, bool add,
             Rows swiglu = {}) {
    if (replay_) return;
    const Part* beside = float_rows_beside(l, add);
    const auto* act = static_cast<const uint8_t*>(x.act);
    for (const Part& p : l.parts) {
      float* y_part = y + p.row0;  // NULL: units, whose only part begins at 0
      if (p.q4) {
        const Q4Matrix& matrix = *static_cast<const Q4Matrix*>(p.data);
        Projected to{y_part, l.rows, add, {}, swiglu.x, static_cast<uint8_t*>(swiglu.act)};
        if (beside)
          to.beside = {static_cast<const float*>(beside->data), norm.x ? norm.x : x.x,
                       y + beside->row0, beside->rows, l.cols};
        for (int block = 0; block * kRowBlock < m; ++block)
          project_q4(matrix, limits_, projection(matrix, block, act, norm, m, to), stream_);
      } else if (&p != beside) {
        launch("project floats", kernel_project_float, dim3(u(ceil_div(p.rows, 4)), u(m)),
               dim3(128), 0, static_cast<const float*>(p.data), x.x, l.cols, p.rows, y_part, l.rows,
               add);
      }
    }
    behind_projection_ = true;
  }

  void quantize(Rows r, int cols, int m) {
    launch("quantize", kernel_quantize, dim3(u(ceil_div(cols / arith::kGroup, 8)), u(m)), dim3(256),
           0, r.x, cols, m, static_cast<uint8_t*>(r.act));
  }

  void synth(const vcuda_tensor& t, size_t n, bool widen, void* to) {
    const size_t blocks = std::min<size_t>((n + 255) / 256, 1u << 16);
    kernel_synth_float<<<static_cast<unsigned>(blocks), 256, 0, stream_>>>(
        synth_stream(t), t.synth.offset, t.synth.scale, t.type, widen, n, to);
    check(cudaGetLastError(), "synthetic weights");
  }

  float* upload_float_matrix(const std::vector<Tensor>& stacked, int rows) {
    const size_t cols = static_cast<size_t>(stacked[0].cols);
    float* p = static_cast<float*>(alloc(static_cast<size_t>(rows) * cols * sizeof(float)));
    float* to = p;
    std::vector<float> row(cols);
    for (const Tensor& t : stacked) {
      if (!t.t->data) {
        synth(*t.t, static_cast<size_t>(t.rows) * cols, true, to);
        to += static_cast<size_t>(t.rows) * cols;
        continue;
      }
      for (size_t r = 0; r < static_cast<size_t>(t.rows); ++r, to += cols) {
        for (size_t i = 0; i < cols; ++i) row[i] = tensor_float(*t.t, r * cols + i);
        upload(to, row.data(), cols * sizeof(float), stream_);
      }
    }
    return p;
  }

  std::vector<float> download(const float* p, size_t n) {
    select();
    std::vector<float> v(n);
    check(cudaStreamSynchronize(stream_), "state_read");
    if (n) check(cudaMemcpy(v.data(), p, n * sizeof(float), cudaMemcpyDeviceToHost), "state_read");
    return v;
  }

  void abandon_capture() noexcept {
    replay_ = false;
    if (!capturing_) return;
    capturing_ = false;
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream_, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
  }

  int device_ = 0;
  Limits limits_;
  size_t shared_most_ = 0;
  Event events_[2];       // around the last step
  bool profile_ = false;  // VLLM_CUDA_PROFILE=1: measure each operation
  std::string profile_text_;
  bool streamed_ = false, replay_ = false, capturing_ = false;
  Stream stream_;
  Arena arena_, partial_arena_, forever_;
  std::vector<std::unique_ptr<Q4Matrix>> matrices_;
  Mapped<int> bad_;
  StepParams step_{};             // of the step that was begun
  StepParams* params_ = nullptr;  // the same in device memory, written by the step's first kernel
  EmbedArgs embed_{};             // that kernel's other arguments
  mutable size_t partial_row_floats_ = 0;  // of the model's attention, from kv_bytes
  float* partial_ = nullptr;
  size_t partial_floats_ = 0;
  bool behind_projection_ = false;  // the last launch of the step
  bool unended_ = false;            // a step was begun and its end not reached
  std::pair<int, int> graph_{};     // m and StepInput::graph of the step
  std::map<std::pair<int, int>, StepGraph> graphs_;
};

}  // namespace gpu

std::unique_ptr<Backend> make_backend(const vcuda_dev_options& options) {
  return std::make_unique<gpu::CudaBackend>(options.device);
}

std::string backend_info() {
  std::string list;
  for (char c : std::string(VCUDA_ARCHITECTURES))
    list += c == ' ' ? std::string("\", \"") : std::string(1, c);
  return "\"backend\": \"cuda\", \"architectures\": [\"" + list + "\"]";
}

}  // namespace vcuda
