// What a backend implements: memory, weights in its own layout, and the operations of the step.
// forward.cpp calls them in the order of the model; the comments here are the arithmetic (lane
// counts: arith/bits.h, "fma" and roundings exactly as written).
//
// Rows: an operation works on m rows (tokens at consecutive positions); row i never depends on a
// later row, and its bits do not depend on m. Buffers are row-major float32 in the backend's
// memory. Act holds the quantized form (arith/quant.h) of a float buffer: an operation that "also
// quantizes" leaves both, since float32 projections read the floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"

namespace vcuda {

struct Tensor {  // a checked vcuda_tensor
  const vcuda_tensor* t;
  int64_t rows, cols;  // a vector has cols 1
};

// Rows of one projection in a backend's layout: consecutive tensors over the same inputs; all of
// one kind.
struct Part {
  void* data = nullptr;    // backend's layout
  bool q4 = false;         // else float32 [rows, cols]
  int row0 = 0, rows = 0;  // rows [row0, row0 + rows) of the projection
};

struct Linear {  // y [m, rows] = W x; parts cover the rows in order
  int rows = 0, cols = 0;
  std::vector<Part> parts;
};

struct Rows {           // activations of a projection
  float* x = nullptr;   // [m, cols]
  void* act = nullptr;  // the same quantized, backend's layout
};

struct GdnWeights {
  Linear in;       // rows qkv | z | b | a
  Linear out;      // [hidden, value_dim]
  float* conv;     // [K, conv_dim]: tap-major, tap K-1 is the current token
  float* a_neg;    // [Hv]: -exp(A_log), by exp32
  float* dt_bias;  // [Hv]
  float* norm;     // [dv], as stored
};

struct AttentionWeights {
  Linear in;               // rows per query head D query, D gate | k | v
  Linear out;              // [hidden, Hq*D]
  float *q_norm, *k_norm;  // [D], 1 + stored weight, added in float32
};

struct Layer {
  vcuda_layer_kind kind;
  int index;                      // among layers of its kind: selects the state
  float *input_norm, *post_norm;  // [hidden], 1 + stored weight
  GdnWeights gdn;
  AttentionWeights attention;
  Linear gate_up;  // [2*I, hidden]: gate rows, then up rows
  Linear down;     // [hidden, I]
};

struct Weights {
  void* embedding = nullptr;  // [V, H] in its own type
  vcuda_type embedding_type = VCUDA_F32;
  float* inv_freq = nullptr;  // [R/2]
  float* final_norm = nullptr;
  Linear head;  // [V, H]
  std::vector<Layer> layers;
  uint64_t step_bytes = 0;       // weights one step reads
  std::string float_projection;  // a projection that is not Q4, so that rows cannot be batched; ""
                                 // when there is none
};

// A set of GDN states: what mark keeps. Two sets alternate (a step reads one and writes the other,
// so that a step can be undone); the first mark adds a third.
struct StateSlot {
  float* s = nullptr;     // [GDN layers, Hv*dk*dv], order inside a head is the backend's
  float* conv = nullptr;  // [GDN layers, K-1, conv_dim], oldest first
};

struct StepInput {
  const int32_t* tokens;  // [m], host memory
  int m;
  int position;           // of row 0
  int context;            // positions the attention caches hold
  const StateSlot* from;  // state before the step
  const StateSlot* to;    // written by the step
  // Steps of one m and graph issue the same operations on the same buffers, so that a backend may
  // record them once; -1: not to be recorded (buffers are read between operations, or there is no
  // end).
  int graph = 0;
};

struct Workspace {           // sized for mmax rows
  float* x = nullptr;        // [m, hidden] residual stream
  Rows h;                    // [m, hidden] normalized
  float* in = nullptr;       // [m, max(gdn_rows, attention_rows)] first projection
  Rows mixed;                // [m, max(value_dim, Hq*D)] mixer's output before its last projection
  float* gate_up = nullptr;  // [m, 2*I]
  Rows swiglu;               // [m, I]
  float* logits = nullptr;   // [m, V]
};

class Backend {
 public:
  virtual ~Backend() = default;

  // -- memory of one model: everything is given back together. VCUDA_E_MEMORY when there is none.
  virtual void* alloc(size_t bytes) = 0;
  virtual void free_all() = 0;
  virtual size_t act_bytes(int cols, int rows) const = 0;  // of Rows::act
  virtual size_t kv_bytes(const Config&,
                          int context) const = 0;  // one attention layer's keys and values
  virtual void zero(void* p, size_t bytes) = 0;
  // A new attention cache: kernels may read rows past the cursor before they drop them.
  virtual void clear_cache(void*, size_t) {}
  virtual void fill(void* p, size_t bytes, uint32_t word) = 0;  // bytes: a multiple of 4
  virtual void fill_kv(const Config&, void* kv, int context, int position,
                       uint32_t word) = 0;       // rows from position on
  virtual void fill_scratch(uint32_t word) = 0;  // the backend's own memory between operations
  virtual void read(void* host, const void* p,
                    size_t bytes) = 0;  // after the operations issued so far

  // -- weights
  virtual float* upload_floats(const std::vector<float>&) = 0;
  virtual void* upload_embedding(const Tensor&) = 0;  // [V, H] as stored
  // All Q4 or all float, same cols; in the order in which a step uses them, so that one's weights
  // can be brought nearer while the one before is at work. gated: rows that swiglu combines, gates,
  // then ups.
  virtual Part upload_matrix(const std::vector<Tensor>& stacked, bool gated = false) = 0;

  // -- the step. begin/end bracket one forward pass; end returns when outputs are in host memory.
  // A step that may be recorded (StepInput::graph) begins with embed, which brings its inputs.
  virtual void begin(const StepInput&) = 0;
  // An operation between begin and end failed: nothing of the step stays open.
  virtual void cancel() noexcept {}

  // x[i] = float32 of embedding row tokens[i].
  virtual void embed(const Weights&, const Config&, const StepInput&, float* x) = 0;

  // y = (x * r) * w with r = 1 / sqrt(ss / n + eps), ss = sum x^2 (kNormLanes). Also quantizes y.
  virtual void rms_norm(const float* x, const float* w, int n, float eps, int m, Rows y) = 0;

  // y = W x (arith/quant.h for Q4; float32 parts: sum with kFloatLanes). y has rows() columns.
  virtual void project(const Linear&, Rows x, int m, float* y) = 0;
  // x += W y, the projection rounded to float32 before the addition.
  virtual void project_add(const Linear&, Rows y, int m, float* x) = 0;

  // y = W norm(x): rms_norm, then project, in one where a backend can; h holds nothing afterwards.
  virtual void norm_project(const float* x, const float* w, float eps, const Linear& l, int m,
                            Rows h, float* y) {
    rms_norm(x, w, l.cols, eps, m, h);
    project(l, h, m, y);
  }

  // in [m, gdn_rows] = u | z | b | a per row.
  //   c = silu(sum over taps of conv * input), taps ascending from the oldest, fma from +0.0
  //   q, k heads: v * r with r = 1 / sqrt(ss + kL2Eps), ss = sum v^2 (kHeadNormLanes); q then times
  //   float32(1/sqrt(dk)) beta = sigmoid(b); g = a_neg * softplus(a + dt_bias); decay = exp(g) S' =
  //   decay * S; mem = sum_i S'[i,n] k[i] (kGdnLanes); d = beta * (v - mem); S = fma(k[i], d, S');
  //   o = sum_i S[i,n] q[i] out = ((o * r) * norm) * silu(z), r = 1 / sqrt(ss / dv + eps), ss = sum
  //   o^2 (kHeadNormLanes)
  // The m rows go through S one after the other. in stays as it is. Also quantizes out [m,
  // value_dim].
  virtual void gdn(const Layer&, const Config&, const StepInput&, float* in, Rows out) = 0;

  // in [m, attention_rows]. q, k per head: rms norm (kHeadNormLanes; as rms_norm), then rotary on
  // dims i, i + R/2:
  //   theta = float64(position) * float64(inv_freq[i]), s, c = sin, cos rounded to float32
  //   x'[i] = fma(x[i], c, -(x[i+R/2] * s)); x'[i+R/2] = fma(x[i+R/2], c, x[i] * s)
  // Keys and values go to row position + i of the cache; row i sees position + i + 1 keys:
  //   score = (q . k with kScoreLanes) * float32(1/sqrt(D)); per chunk: mx = max, e = exp(score -
  //   mx), sum e (kExpLanes over t - 64*chunk), o[n] = sum_t e v (ascending fma from +0.0) merge
  //   (mx, s, o) with a later (mx', s', o'): M = max, f = exp(mx - M), f' = exp(mx' - M); s =
  //   fma(s', f', s * f); o = fma(o', f', o * f) out = (o / s) * sigmoid(gate). Also quantizes out
  //   [m, Hq*D].
  virtual void attention(const Layer&, const Config&, const Weights&, const StepInput&, void* kv,
                         float* in, Rows out) = 0;

  // out = silu(gate) * up, gate_up [m, 2*n]. Also quantizes out [m, n].
  virtual void swiglu(const float* gate_up, int n, int m, Rows out) = 0;

  // out = swiglu of W norm(x), in one or two where a backend can; h and gate_up hold nothing
  // afterwards.
  virtual void norm_swiglu(const float* x, const float* w, float eps, const Linear& l, int m,
                           Rows h, float* gate_up, Rows out) {
    norm_project(x, w, eps, l, m, h, gate_up);
    swiglu(gate_up, l.rows / 2, m, out);
  }

  // Waits for the step, copies h [m, hidden] and logits [m, vocab] to host memory; false when one
  // value is NaN or infinite.
  virtual bool end(const Config&, int m, const float* h, const float* logits, float* h_out,
                   float* logits_out) = 0;

  // -- for the tools: the device's time of the last step, and a line for each operation where the
  // backend was told to measure them.
  virtual double step_seconds() { return 0.0; }
  virtual std::string profile() { return {}; }

  // -- state_read, in the ABI's layouts; host memory. keys: else values.
  virtual void read_s(const Config&, const float* s, float* out) = 0;
  virtual void read_conv(const Config&, const float* conv, float* out) = 0;
  virtual void read_kv(const Config&, const void* kv, int context, int position, bool keys,
                       float* out) = 0;
};

// The backend this library was built with.
std::unique_ptr<Backend> make_backend(const vcuda_dev_options&);
std::string backend_info();  // JSON members, without braces: "backend": ..., "architectures": ...

}  // namespace vcuda
