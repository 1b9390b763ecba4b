// q35_attn_m: the proof at the level of the attention kernel.
//
// 27B shapes: for each M and cursor, M rows one by one against M rows at once: the whole cache and
// the outputs by bytes, the appended rows against the inputs, and memory past the cursor untouched.
// Then two counter-proofs that the comparison can see a difference: with one and the same query in
// every row and new keys that differ, the first and the last row must differ; at cursor 0 with one
// and the same key and value everywhere and no rotation, every row must be equal by right.
//
// Then every division of the work (tiles, grids from 3 blocks on, pieces of each size) at cursors
// up to 16 thousand keys and several head sizes against a plain kernel that follows the contract's
// text: outputs, quantized outputs and both caches by bytes. Exit status 0: all of that holds; 1:
// it does not, and a line says where; 2: no device.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "arith/sum.h"
#include "arith/synth.h"
#include "cuda/device.h"
#include "kernels/attention.cuh"

using namespace vcuda;
using namespace vcuda::gpu;

namespace proof {

struct Shape {
  int q_heads, kv_heads, d, rotary, context;
  int ld() const { return 2 * (q_heads + kv_heads) * d; }
  int keys_at() const { return 2 * q_heads * d; }
  int values_at() const { return keys_at() + kv_heads * d; }
  int width() const { return q_heads * d; }
  size_t head_floats() const { return static_cast<size_t>(context) * d; }
  size_t cache_floats() const { return 2 * kv_heads * head_floats(); }
  size_t key_at(int head, int position, int n) const {
    return head * head_floats() +
           static_cast<size_t>(position / arith::kChunk) * d * arith::kChunk +
           static_cast<size_t>(n) * arith::kChunk + position % arith::kChunk;
  }
  size_t value_at(int head, int position) const {
    return (kv_heads + head) * head_floats() + static_cast<size_t>(position) * d;
  }
};

constexpr int kMost = kAttentionRows, kMostGrid = 132, kLongest = 16384 + 64;
constexpr Shape k27b{24, 4, 256, 64, 1088};

struct Inputs {
  std::vector<float> rows;      // [M, ld]
  std::vector<float> inv_freq;  // [rotary / 2]
};

struct Result {
  std::vector<float> cache, out;  // out [M, Hq*D]
};

// How the work is divided; bits must not depend on it.
struct Division {
  int tile = -1, grid = kMostGrid, shared = 0;  // shared memory in bytes, 0: all there is
};

// The contract's text, one thread a head of a row: norm, rotary, append. q: [rows, Hq*D].
__global__ void kernel_plain_heads(AttentionArgs a, const StepParams* step, float* q) {
  const int h = blockIdx.x, row = blockIdx.y, d = a.d, position = step->position + row;
  const bool is_q = h < a.q_heads;
  const float* x = a.in + static_cast<size_t>(row) * a.ld +
                   (is_q ? h * 2 * d : a.q_heads * 2 * d + (h - a.q_heads) * d);
  const float* w = is_q ? a.q_norm : a.k_norm;
  float lanes[arith::kHeadNormLanes] = {}, y[512];
  for (int n = 0; n < d; ++n) {
    float& lane = lanes[n % arith::kHeadNormLanes];
    lane = arith::fma32(x[n], x[n], lane);
  }
  const float ss = arith::tree_sum<arith::kHeadNormLanes>(lanes);
  const float r =
      arith::div32(1.0f, arith::sqrt32(arith::div32(ss, static_cast<float>(d)) + a.eps));
  for (int n = 0; n < d; ++n) y[n] = (x[n] * r) * w[n];
  for (int i = 0; i < a.half; ++i) {
    double s, c;
    arith::sincos64(static_cast<double>(position) * static_cast<double>(a.inv_freq[i]), s, c);
    const float sine = static_cast<float>(s), cosine = static_cast<float>(c), lo = y[i],
                hi = y[i + a.half];
    y[i] = arith::fma32(lo, cosine, -(hi * sine));
    y[i + a.half] = arith::fma32(hi, cosine, lo * sine);
  }
  for (int n = 0; n < d; ++n)
    if (is_q) {
      q[(static_cast<size_t>(row) * a.q_heads + h) * d + n] = y[n];
    } else {
      const size_t head = (h - a.q_heads) * a.head_floats;
      a.keys[head + static_cast<size_t>(position / arith::kChunk) * d * arith::kChunk +
             n * arith::kChunk + position % arith::kChunk] = y[n];
      a.values[head + static_cast<size_t>(position) * d + n] = x[a.kv_heads * d + n];
    }
}

struct PlainState {
  float mx, s;
};
__device__ PlainState plain_merge(PlainState a, PlainState b, float* before, float* after) {
  const float mx = a.mx > b.mx ? a.mx : b.mx;
  *before = arith::exp32(a.mx - mx), *after = arith::exp32(b.mx - mx);
  return {mx, arith::fma32(b.s, *after, a.s * *before)};
}

// A block a head of a row, 512 threads, a dimension each.
__global__ void kernel_plain_attention(AttentionArgs a, const StepParams* step, const float* q) {
  __shared__ float query[512], e[arith::kChunk];
  __shared__ PlainState state;
  const int h = blockIdx.x, row = blockIdx.y, n = threadIdx.x, d = a.d,
            visible = step->position + row + 1, kv = h / (a.q_heads / a.kv_heads);
  if (n < d) query[n] = q[(static_cast<size_t>(row) * a.q_heads + h) * d + n];
  PlainState span{}, total{};
  float span_o = 0.0f, total_o = 0.0f, before, after;
  const int chunks = (visible + arith::kChunk - 1) / arith::kChunk;
  for (int c = 0; c < chunks; ++c) {
    const int count = min(visible - c * arith::kChunk, arith::kChunk);
    __syncthreads();
    if (n < count) {
      const float* key =
          a.keys + kv * a.head_floats + static_cast<size_t>(c) * d * arith::kChunk + n;
      float lanes[arith::kScoreLanes] = {};
      for (int i = 0; i < d; ++i) {
        float& lane = lanes[i % arith::kScoreLanes];
        lane = arith::fma32(query[i], key[i * arith::kChunk], lane);
      }
      e[n] = arith::tree_sum<arith::kScoreLanes>(lanes) * a.scale;
    }
    __syncthreads();
    if (n == 0) {
      float lanes[arith::kExpLanes] = {}, mx = e[0];
      for (int t = 1; t < count; ++t) mx = e[t] > mx ? e[t] : mx;
      for (int t = 0; t < count; ++t) {
        e[t] = arith::exp32(e[t] - mx);
        lanes[t % arith::kExpLanes] += e[t];
      }
      state = {mx, arith::tree_sum<arith::kExpLanes>(lanes)};
    }
    __syncthreads();
    float o = 0.0f;
    if (n < d)
      for (int t = 0; t < count; ++t)
        o = arith::fma32(
            e[t],
            a.values[kv * a.head_floats + (static_cast<size_t>(c) * arith::kChunk + t) * d + n], o);
    if (c % arith::kSpanChunks == 0) {
      span = state, span_o = o;
    } else {
      span = plain_merge(span, state, &before, &after);
      span_o = arith::fma32(o, after, span_o * before);
    }
    if ((c + 1) % arith::kSpanChunks != 0 && c + 1 < chunks) continue;
    if (c < arith::kSpanChunks) {
      total = span, total_o = span_o;
    } else {
      total = plain_merge(total, span, &before, &after);
      total_o = arith::fma32(span_o, after, total_o * before);
    }
  }
  float v = 0.0f;
  if (n < d) {
    const float gate =
        a.in[static_cast<size_t>(row) * a.ld + static_cast<size_t>(h) * 2 * d + d + n];
    v = arith::div32(total_o, total.s) * arith::sigmoid32(gate);
    a.out[static_cast<size_t>(row) * a.ld_out() + h * d + n] = v;
  }
  if (d % arith::kGroup == 0 && n / 32 * 32 < d)
    quantize_group(v, n % 32, a.act, a.ld_out() / arith::kGroup, (h * d + n) / arith::kGroup, row,
                   a.m);
}

// Positions from `cursor` on: NaN, which no row may see.
__global__ void kernel_fill_cache(float* cache, Shape shape, int cursor) {
  const arith::SynthStream stream = arith::SynthStream::of(11, 2);
  const size_t n = 2 * static_cast<size_t>(shape.kv_heads) * shape.context * shape.d, half = n / 2,
               head = static_cast<size_t>(shape.context) * shape.d;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const size_t at = i % head, row = at / shape.d;
    const int position = static_cast<int>(
        i < half ? at / (static_cast<size_t>(shape.d) * arith::kChunk) * arith::kChunk +
                       at % arith::kChunk
                 : row);
    cache[i] = position < cursor ? arith::synth_float(stream, i, 0.0f, 1.0f)
                                 : __uint_as_float(0x7fc00000u);
  }
}

__global__ void kernel_count_different(const uint32_t* a, const uint32_t* b, size_t n,
                                       unsigned* different) {
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x)
    if (a[i] != b[i]) atomicAdd(different, 1u);
}

std::vector<float> random(uint64_t key, size_t n) {
  const arith::SynthStream stream = arith::SynthStream::of(11, key);
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = arith::synth_float(stream, i, 0.0f, 1.0f);
  return v;
}

std::vector<float> frequencies(int rotary) {
  std::vector<float> v;
  for (int i = 0; i < rotary / 2; ++i)
    v.push_back(static_cast<float>(std::pow(1e7, -2.0 * i / rotary)));
  return v;
}

bool same(const float* a, const float* b, size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}

// Device memory for one shape.
class Bench {
 public:
  explicit Bench(const Shape& shape) : shape_(shape) {
    stream_.create(false);
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, 0), "device");
    shared_most_ = static_cast<int>(p.sharedMemPerBlockOptin);
    check(cudaFuncSetAttribute(attention_kernel(shape.d).kernel,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, shared_most_),
          "device");
    for (float*& cache : caches_) cache = floats(shape.cache_floats());
    for (float*& out : outs_) out = floats(size_t{kMost} * shape.width());
    act_bytes_ = size_t{kMost} * shape.width() * 4;
    for (uint8_t*& act : acts_) act = static_cast<uint8_t*>(arena_.alloc(act_bytes_));
    in_ = floats(size_t{kMost} * shape.ld()), q_ = floats(size_t{kMost} * shape.width());
    q_norm_ = floats(shape.d), k_norm_ = floats(shape.d), inv_freq_ = floats(shape.rotary / 2);
    for (int grid : {3, 16, 40, kMostGrid})
      for (int rows = 1; rows <= kMost; ++rows)
        partial_floats_ =
            std::max(partial_floats_,
                     attention_partial_floats(shape.context, rows, shape.q_heads, shape.kv_heads,
                                              shape.d, kAttentionTiles - 1, grid));
    partial_ = floats(partial_floats_);
    counters_bytes_ = attention_counters(shape.q_heads, shape.kv_heads) * sizeof(unsigned);
    counters_ = static_cast<unsigned*>(arena_.alloc(counters_bytes_));
    check(cudaMemset(counters_, 0, counters_bytes_), "counters");
    step_ = static_cast<StepParams*>(arena_.alloc(sizeof(StepParams)));
    different_ = static_cast<unsigned*>(arena_.alloc(sizeof(unsigned)));
  }

  const Shape& shape() const { return shape_; }
  void inputs(const std::vector<float>& q_norm, const std::vector<float>& k_norm,
              const std::vector<float>& inv_freq) {
    upload(q_norm_, q_norm), upload(k_norm_, k_norm), upload(inv_freq_, inv_freq);
  }
  void cache(const std::vector<float>& v) { upload(caches_[0], v); }
  void fill(int which, int cursor) {
    kernel_fill_cache<<<512, 256, 0, stream_>>>(caches_[which], shape_, cursor);
  }
  void rows(const float* v, int m) {
    check(cudaMemcpy(in_, v, sizeof(float) * shape_.ld() * m, cudaMemcpyHostToDevice), "copy");
  }

  // Into cache and output `which`.
  AttentionArgs args(int which, int m, int cursor) {
    StepParams step{};
    step.position = cursor;
    check(cudaMemcpy(step_, &step, sizeof step, cudaMemcpyHostToDevice), "copy");
    AttentionArgs a{};
    a.in = in_, a.q_norm = q_norm_, a.k_norm = k_norm_, a.inv_freq = inv_freq_;
    a.keys = caches_[which], a.values = a.keys + shape_.kv_heads * shape_.head_floats();
    a.head_floats = shape_.head_floats(), a.partial = partial_, a.counters = counters_;
    a.out = outs_[which], a.act = acts_[which], a.rows = a.m = m, a.ld = shape_.ld();
    a.q_heads = shape_.q_heads, a.kv_heads = shape_.kv_heads, a.d = shape_.d;
    a.per_kv = shape_.q_heads / shape_.kv_heads;
    a.half = shape_.rotary / 2, a.eps = 1e-6f;
    a.scale = 1.0f / std::sqrt(static_cast<float>(shape_.d));
    return a;
  }
  // False where the division does not fit.
  bool attend(AttentionArgs a, const Division& division) {
    const AttentionKernel kernel = attention_kernel(a.d);
    const int most = division.tile >= 0 ? std::min(division.tile, kernel.most_tile)
                                        : attention_most_tile(a.queries(), kernel.most_tile);
    a.tile = division.tile;
    a.room = attention_room(division.shared ? division.shared : shared_most_, a.d, a.rows, most);
    if (a.room.most_tile < 0 || division.tile > a.room.most_tile) return false;
    check(cudaMemsetAsync(partial_, 0xff, partial_floats_ * sizeof(float), stream_), "poison");
    stream_.launch("attention", kernel.kernel, dim3(division.grid), dim3(kAttentionThreads),
                   attention_shared_bytes(a.room, a.d, a.rows), 1, a, step_);
    return true;
  }
  void plain(const AttentionArgs& a) {
    kernel_plain_heads<<<dim3(a.q_heads + a.kv_heads, a.rows), 1, 0, stream_>>>(a, step_, q_);
    kernel_plain_attention<<<dim3(a.q_heads, a.rows), 512, 0, stream_>>>(a, step_, q_);
  }
  void clear_outputs() {
    for (float* out : outs_)
      check(cudaMemsetAsync(out, 0, sizeof(float) * kMost * shape_.width(), stream_), "clear");
    for (uint8_t* act : acts_) check(cudaMemsetAsync(act, 0, act_bytes_, stream_), "clear");
  }
  unsigned different_caches() { return different(caches_[0], caches_[1], shape_.cache_floats()); }
  unsigned different_outputs(int m) {
    return different(outs_[0], outs_[1], static_cast<size_t>(m) * shape_.width());
  }
  unsigned different_acts() { return different(acts_[0], acts_[1], act_bytes_ / 4); }
  bool counters_left() {
    std::vector<unsigned> v(counters_bytes_ / sizeof(unsigned));
    check(cudaMemcpy(v.data(), counters_, counters_bytes_, cudaMemcpyDeviceToHost), "copy");
    return std::any_of(v.begin(), v.end(), [](unsigned x) { return x != 0; });
  }
  std::vector<float> output(int which, int m) {
    return download(outs_[which], static_cast<size_t>(m) * shape_.width());
  }
  std::vector<float> cache() { return download(caches_[0], shape_.cache_floats()); }

 private:
  float* floats(size_t n) { return static_cast<float*>(arena_.alloc(n * sizeof(float))); }
  void upload(float* to, const std::vector<float>& v) {
    check(cudaMemcpy(to, v.data(), v.size() * sizeof(float), cudaMemcpyHostToDevice), "copy");
  }
  std::vector<float> download(const float* from, size_t n) {
    std::vector<float> v(n);
    check(cudaStreamSynchronize(stream_), "attention");
    check(cudaMemcpy(v.data(), from, n * sizeof(float), cudaMemcpyDeviceToHost), "copy");
    return v;
  }
  unsigned different(const void* a, const void* b, size_t words) {
    unsigned n = 0;
    check(cudaMemsetAsync(different_, 0, sizeof n, stream_), "comparison");
    kernel_count_different<<<512, 256, 0, stream_>>>(
        static_cast<const uint32_t*>(a), static_cast<const uint32_t*>(b), words, different_);
    check(cudaMemcpyAsync(&n, different_, sizeof n, cudaMemcpyDeviceToHost, stream_), "comparison");
    check(cudaStreamSynchronize(stream_), "comparison");
    return n;
  }

  Shape shape_;
  Arena arena_;
  Stream stream_;
  int shared_most_ = 0;
  float *caches_[2], *outs_[2], *in_, *q_, *q_norm_, *k_norm_, *inv_freq_, *partial_;
  uint8_t* acts_[2];
  size_t act_bytes_, partial_floats_ = 0, counters_bytes_;
  unsigned *counters_, *different_;
  StepParams* step_;
};

int failures = 0;
void expect(bool holds, int m, int cursor, const std::string& what) {
  if (holds) return;
  ++failures;
  std::printf("M %d, cursor %d: %s\n", m, cursor, what.c_str());
}

// Rows [0, m) in batches of `batch` from `cursor` on, over a cache that starts as `before`.
Result run(Bench& bench, const Inputs& inputs, const std::vector<float>& before, int cursor, int m,
           int batch) {
  const std::vector<float> ones(static_cast<size_t>(bench.shape().d), 1.0f);
  bench.cache(before);
  bench.inputs(ones, ones, inputs.inv_freq);
  Result result;
  for (int row = 0; row < m; row += batch) {
    bench.rows(inputs.rows.data() + static_cast<size_t>(bench.shape().ld()) * row, batch);
    bench.attend(bench.args(0, batch, cursor + row), {});
    const std::vector<float> out = bench.output(0, batch);
    result.out.insert(result.out.end(), out.begin(), out.end());
  }
  result.cache = bench.cache();
  return result;
}

void check_rows(Bench& bench, int m, int cursor) {
  const Shape& s = bench.shape();
  const size_t ld = static_cast<size_t>(s.ld()), width = static_cast<size_t>(s.width());
  const Inputs inputs{random(1, kMost * ld), frequencies(s.rotary)};
  static const std::vector<float> full = random(2, s.cache_floats());
  std::vector<float> before = full;
  for (int head = 0; head < s.kv_heads; ++head)  // past the cursor: what no row may see
    for (int p = cursor; p < s.context; ++p)
      for (int n = 0; n < s.d; ++n)
        before[s.key_at(head, p, n)] = before[s.value_at(head, p) + n] = NAN;

  const Result single = run(bench, inputs, before, cursor, m, 1),
               batch = run(bench, inputs, before, cursor, m, m);
  expect(same(single.cache.data(), batch.cache.data(), s.cache_floats()), m, cursor,
         "the caches differ");
  expect(same(single.out.data(), batch.out.data(), single.out.size()), m, cursor,
         "the outputs differ");
  bool finite = true, appended = true, untouched = true;
  for (float x : batch.out) finite = finite && std::isfinite(x);
  expect(finite, m, cursor, "an output saw memory past its cursor");
  for (int head = 0; head < s.kv_heads; ++head) {
    for (int i = 0; i < m; ++i) {
      const float* row = inputs.rows.data() + ld * i;
      appended = appended && same(&batch.cache[s.value_at(head, cursor + i)],
                                  row + s.values_at() + head * s.d, s.d);
      // Keys: the dimensions that rotary leaves are x * r; so their quotients with the input are
      // one and the same up to rounding.
      const float* key = row + s.keys_at() + head * s.d;
      double ss = 0;
      for (int n = 0; n < s.d; ++n) ss += double{key[n]} * key[n];
      for (int n = s.rotary; n < s.d; ++n)
        appended = appended && std::fabs(batch.cache[s.key_at(head, cursor + i, n)] -
                                         key[n] / std::sqrt(ss / s.d + 1e-6)) <=
                                   1e-6 * (1 + std::fabs(key[n] * 16));
    }
    for (int p = 0; p < s.context; ++p)
      if (p < cursor || p >= cursor + m)
        untouched =
            untouched && same(&batch.cache[s.value_at(head, p)], &before[s.value_at(head, p)], s.d);
  }
  expect(appended, m, cursor, "the appended rows are not the inputs");
  expect(untouched, m, cursor, "a row outside the appended ones changed");
  if (m == 1) return;

  Inputs flat = inputs;  // one query and gate for all rows; keys and values stay different
  for (int i = 1; i < m; ++i)
    std::memcpy(flat.rows.data() + ld * i, flat.rows.data(), sizeof(float) * s.keys_at());
  const Result seen = run(bench, flat, before, cursor, m, m);
  expect(!same(seen.out.data(), seen.out.data() + width * (m - 1), width), m, cursor,
         "flat queries, other keys: the first and the last row are equal");
  if (cursor != 0) return;

  for (float& f : flat.inv_freq) f = 0.0f;
  for (int i = 0; i < m; ++i) {
    std::memcpy(flat.rows.data() + ld * i, flat.rows.data(), sizeof(float) * ld);
    for (int n = 0; n < s.kv_heads * s.d; ++n)
      flat.rows[ld * i + s.values_at() + n] =
          static_cast<float>(n % 61 - 30) / 64;  // sums of 8 are exact
  }
  const Result equal = run(bench, flat, before, cursor, m, m);
  for (int i = 1; i < m; ++i)
    expect(same(equal.out.data(), equal.out.data() + width * i, width), m, cursor,
           "one key and value everywhere: the rows differ");
}

// M rows at `cursor` by each of these divisions against the plain kernel. Returns the cases.
int check_divisions(Bench& bench, int m, int cursor, const std::vector<Division>& divisions) {
  const Shape& s = bench.shape();
  if (cursor + m > s.context) return 0;
  bench.inputs(random(3, s.d), random(4, s.d), frequencies(s.rotary));
  bench.rows(random(5, static_cast<size_t>(m) * s.ld()).data(), m);
  bench.clear_outputs();
  bench.fill(1, cursor);
  bench.plain(bench.args(1, m, cursor));
  int cases = 0;
  for (const Division& division : divisions) {
    bench.fill(0, cursor);
    if (!bench.attend(bench.args(0, m, cursor), division)) continue;
    ++cases;
    const std::string where = "D " + std::to_string(s.d) + ", tile " +
                              std::to_string(division.tile) + ", " + std::to_string(division.grid) +
                              " blocks, " + std::to_string(division.shared) + " bytes: ";
    const unsigned outputs = bench.different_outputs(m), caches = bench.different_caches();
    expect(outputs == 0, m, cursor, where + std::to_string(outputs) + " outputs differ");
    expect(caches == 0, m, cursor, where + std::to_string(caches) + " words of the caches differ");
    if (s.d % arith::kGroup == 0)
      expect(bench.different_acts() == 0, m, cursor, where + "the quantized outputs differ");
    expect(!bench.counters_left(), m, cursor, where + "a counter is not zero afterwards");
  }
  return cases;
}

int check_shape(const Shape& shape, const std::vector<int>& ms, const std::vector<int>& cursors,
                const std::vector<int>& grids) {
  Bench bench(shape);
  std::vector<Division> divisions;
  for (int tile = -1; tile < kAttentionTiles; ++tile)
    for (int grid : grids) divisions.push_back({tile, grid, 0});
  for (int shared : {160 * 1024, 96 * 1024, 66 * 1024, 48 * 1024})
    divisions.push_back({-1, 16, shared});
  int cases = 0;
  for (int cursor : cursors)
    for (int m : ms) cases += check_divisions(bench, m, cursor, divisions);
  return cases;
}

}  // namespace proof

int main() {
  try {
    int cases = 0;
    {
      proof::Bench bench(proof::k27b);
      for (int m : {1, 2, 4, 8})
        for (int cursor : {0, 1, 5, 17, 63, 64, 65, 1000})
          proof::check_rows(bench, m, cursor), ++cases;
    }
    const int rows = proof::failures;
    std::printf("q35_attn_m: rows together and one by one: %d cases, %d failures\n", cases, rows);
    proof::Shape shape = proof::k27b;
    shape.context = proof::kLongest;
    cases = proof::check_shape(shape, {1, 2, 5, 8}, {0, 1, 60, 63, 64, 450, 1020, 1023, 1024, 2047},
                               {3, 40, 132});
    cases +=
        proof::check_shape(shape, {1, 8}, {4090, 8185, 8191, 8192, 8193, 16383, 16384}, {16, 132});
    for (proof::Shape other : {proof::Shape{6, 2, 64, 16, 2112}, proof::Shape{5, 1, 80, 80, 2112},
                               proof::Shape{16, 2, 96, 10, 2112},
                               proof::Shape{6, 3, 512, 512, 2112}, proof::Shape{4, 2, 16, 2, 2112}})
      cases += proof::check_shape(other, {1, 3, 8}, {0, 61, 64, 1021, 2047}, {3, 132});
    std::printf(
        "q35_attn_m: divisions of the work against the plain kernel: %d cases, %d failures\n",
        cases, proof::failures - rows);
    return proof::failures ? 1 : 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "q35_attn_m: %s\n", e.what());
    return 2;
  }
}
