// q35_attn_m: the proof at the level of the attention kernels.
//
// 27B shapes: for each M and cursor, M rows one by one against M rows at once: the whole cache and
// the outputs by bytes, the appended rows against the inputs, and memory past the cursor untouched.
// Then two counter-proofs that the comparison can see a difference: with one and the same query in
// every row and new keys that differ, the first and the last row must differ; at cursor 0 with one
// and the same key and value everywhere and no rotation, every row must be equal by right.
//
// Then each compiled kernel on grids and in pieces of several sizes, at cursors on both sides of
// the border between units of chunks and of spans and up to 16 thousand keys, at several head
// sizes, against a plain kernel that follows the contract's text: outputs, quantized outputs and
// both caches by bytes. Exit status 0: all of that holds; 1: it does not, and a line says where; 2:
// no device.
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

constexpr int kMost = 8, kLongest = 16384 + 64;
constexpr int kShared = 227 * 1024;  // bytes of a block
constexpr Shape k27b{24, 4, 256, 64, 1088};

struct Inputs {
  std::vector<float> rows;      // [M, ld]
  std::vector<float> inv_freq;  // [rotary / 2]
};

struct Result {
  std::vector<float> cache, out;  // out [M, Hq*D]
};

// A compiled kernel, the blocks that share the work and the floats of its pieces at most; bits must
// depend on none of it.
struct Division {
  const AttentionKernel* kernel;
  int grid, piece;
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
    for (const AttentionKernel& k : kAttentionKernels)
      check(cudaFuncSetAttribute(k.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
            "device");
    for (float*& cache : caches_) cache = floats(shape.cache_floats());
    for (float*& out : outs_) out = floats(size_t{kMost} * shape.width());
    act_bytes_ = size_t{kMost} * shape.width() * 4;
    for (uint8_t*& act : acts_) act = static_cast<uint8_t*>(arena_.alloc(act_bytes_));
    in_ = floats(size_t{kMost} * shape.ld()), q_ = floats(size_t{kMost} * shape.width());
    q_norm_ = floats(shape.d), k_norm_ = floats(shape.d), inv_freq_ = floats(shape.rotary / 2);
    partial_floats_ = size_t{kMost} * shape.q_heads * attention_units(shape.context) *
                      static_cast<size_t>(partial_pitch(shape.d));
    partial_ = floats(partial_floats_);
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
    a.head_floats = shape_.head_floats(), a.partial = partial_;
    a.units = attention_units(shape_.context);
    a.out = outs_[which], a.act = acts_[which], a.m = m, a.ld = shape_.ld();
    a.q_heads = shape_.q_heads, a.kv_heads = shape_.kv_heads, a.d = shape_.d;
    a.half = shape_.rotary / 2, a.eps = 1e-6f;
    a.scale = 1.0f / std::sqrt(static_cast<float>(shape_.d));
    return a;
  }
  // Whether this kernel can work on the shape in such pieces.
  bool fits(const Division& division) const {
    AttentionRoom room;
    return room_of(division, room) && room.piece == division.piece;
  }
  void attend(AttentionArgs a, const Division& division) {
    const AttentionKernel& k = *division.kernel;
    room_of(division, a.room);
    check(cudaMemsetAsync(partial_, 0xff, partial_floats_ * sizeof(float), stream_), "poison");
    stream_.launch("prepare", kernel_attention_prepare,
                   dim3(ceil_div(a.q_heads + a.kv_heads, 4), a.m), dim3(128), 0, 1, a, step_);
    stream_.launch("attention", k.kernel, dim3(division.grid), dim3(kAttentionThreads),
                   4 * attention_shared_floats(6 * k.many, k.v, a.room.piece), 1, a, step_);
    stream_.launch("merge", kernel_attention_merge, dim3(a.q_heads, a.m),
                   dim3(ceil_div(a.d, 32) * 32), 0, 1, a, step_);
  }
  void plain(const AttentionArgs& a) {
    kernel_plain_heads<<<dim3(a.q_heads + a.kv_heads, a.m), 1, 0, stream_>>>(a, step_, q_);
    kernel_plain_attention<<<dim3(a.q_heads, a.m), 512, 0, stream_>>>(a, step_, q_);
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
  std::vector<float> output(int which, int m) {
    return download(outs_[which], static_cast<size_t>(m) * shape_.width());
  }
  std::vector<float> cache() { return download(caches_[0], shape_.cache_floats()); }

 private:
  bool room_of(const Division& division, AttentionRoom& room) const {
    const AttentionKernel& k = *division.kernel;
    return k.v == ceil_div(shape_.d, 256) &&
           attention_room(
               6 * k.many, k.v, shape_.d,
               std::min(kShared, 4 * attention_shared_floats(6 * k.many, k.v, division.piece)),
               room);
  }
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
  float *caches_[2], *outs_[2], *in_, *q_, *q_norm_, *k_norm_, *inv_freq_, *partial_;
  uint8_t* acts_[2];
  size_t act_bytes_, partial_floats_;
  unsigned* different_;
  StepParams* step_;
};

int failures = 0;
void expect(bool holds, int m, int cursor, const std::string& what) {
  if (holds) return;
  ++failures;
  std::printf("M %d, cursor %d: %s\n", m, cursor, what.c_str());
}

// What the backend takes for m rows on this chip.
Division kernel_for(const Bench& bench, int m) {
  const Shape& s = bench.shape();
  AttentionRoom room{};
  const AttentionKernel* k = attention_kernel(s.d, m * s.q_heads / s.kv_heads, kShared, room);
  return {k, 132, room.piece};
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
    bench.attend(bench.args(0, batch, cursor + row), kernel_for(bench, batch));
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

// M rows at `cursor` by each form on each grid against the plain kernel. Returns the cases.
int check_forms(Bench& bench, int m, int cursor, const std::vector<int>& grids) {
  const Shape& s = bench.shape();
  bench.inputs(random(3, s.d), random(4, s.d), frequencies(s.rotary));
  const std::vector<float> rows = random(5, static_cast<size_t>(m) * s.ld());
  bench.rows(rows.data(), m);
  bench.clear_outputs();
  bench.fill(1, cursor);
  bench.plain(bench.args(1, m, cursor));
  int cases = 0;
  for (const AttentionKernel& k : kAttentionKernels)
    for (int piece : {1024, 2048, 4096, 8192})
      for (int grid : grids) {
        const Division division{&k, grid, piece};
        if (!bench.fits(division) || (piece != 8192 && grid != grids[0])) continue;
        ++cases;
        bench.fill(0, cursor);
        bench.rows(rows.data(), m);  // queries are rotated where they lie
        bench.attend(bench.args(0, m, cursor), division);
        const std::string where = "D " + std::to_string(s.d) + ", tiles of up to " +
                                  std::to_string(6 * k.many) + " queries, pieces of " +
                                  std::to_string(piece) + ", " + std::to_string(grid) + " blocks: ";
        const unsigned outputs = bench.different_outputs(m), caches = bench.different_caches();
        expect(outputs == 0, m, cursor, where + std::to_string(outputs) + " outputs differ");
        expect(caches == 0, m, cursor,
               where + std::to_string(caches) + " words of the caches differ");
        if (s.d % arith::kGroup == 0)
          expect(bench.different_acts() == 0, m, cursor, where + "the quantized outputs differ");
      }
  return cases;
}

int check_shape(const Shape& shape, const std::vector<int>& ms, const std::vector<int>& cursors) {
  Bench bench(shape);
  int cases = 0;
  for (int cursor : cursors)
    for (int m : ms) cases += check_forms(bench, m, cursor, {40, 3, 132});
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
    // More than kMostChunkUnits chunks are worked on by span: from 8192 visible keys on.
    proof::Shape shape = proof::k27b;
    shape.context = proof::kLongest;
    cases = proof::check_shape(
        shape, {1, 2, 5, 8},
        {0, 1, 60, 63, 64, 450, 1020, 1023, 1024, 2047, 8184, 8191, 8192, 8193, 16383, 16384});
    for (const proof::Shape& other :
         {proof::Shape{6, 2, 64, 16, 2112}, proof::Shape{5, 1, 80, 80, 2112},
          proof::Shape{16, 2, 96, 10, 2112}, proof::Shape{6, 3, 512, 512, 2112},
          proof::Shape{4, 2, 16, 2, 2112}})
      cases += proof::check_shape(other, {1, 3, 8}, {0, 61, 64, 1021, 2047});
    cases += proof::check_shape({4, 2, 16, 2, 9216}, {1, 3, 8}, {8189, 8192, 9150});
    std::printf("q35_attn_m: against the plain kernel: %d cases, %d failures\n", cases,
                proof::failures - rows);
    return proof::failures ? 1 : 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "q35_attn_m: %s\n", e.what());
    return 2;
  }
}
