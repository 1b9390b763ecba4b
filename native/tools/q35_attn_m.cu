// q35_attn_m: the proof at the level of the attention kernels, 27B shapes. For each M and cursor: M
// rows one by one against M rows at once: the whole cache and the outputs by bytes, the appended
// rows against the inputs, and memory past the cursor untouched. Then two counter-proofs that the
// comparison can see a difference: with one and the same query in every row and new keys that
// differ, the first and the last row must differ; at cursor 0 with one and the same key and value
// everywhere and no rotation, every row must be equal by right. Exit status 0: all of that holds;
// 1: it does not, and a line says where; 2: no device.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "arith/synth.h"
#include "cuda/device.h"
#include "kernels/attention.cuh"

using namespace vcuda;
using namespace vcuda::gpu;

namespace proof {

constexpr int kQueryHeads = 24, kKeyHeads = 4, kDim = 256, kRotary = 64, kContext = 1088, kMost = 8;
constexpr int kLd = 2 * kQueryHeads * kDim + 2 * kKeyHeads * kDim, kKeysAt = 2 * kQueryHeads * kDim,
              kValuesAt = kKeysAt + kKeyHeads * kDim;
constexpr size_t kHeadFloats = size_t{kContext} * kDim, kCacheFloats = 2 * kKeyHeads * kHeadFloats;

struct Inputs {
  std::vector<float> rows;      // [M, kLd]
  std::vector<float> inv_freq;  // [kRotary / 2]
};

struct Result {
  std::vector<float> cache, out;  // out [M, Hq*D]
};

class Proof {
 public:
  Proof() {
    stream_.create(false);
    cache_ = floats(kCacheFloats), in_ = floats(kMost * kLd),
    out_ = floats(kMost * kQueryHeads * kDim), norm_ = floats(kDim),
    inv_freq_ = floats(kRotary / 2);
    partial_ = floats(size_t{kMost} * kQueryHeads * attention_units(kContext) * (kDim + 2));
    act_ = static_cast<uint8_t*>(arena_.alloc(size_t{kQueryHeads} * kDim / 32 * act_stride(kMost)));
    step_ = static_cast<StepParams*>(arena_.alloc(sizeof(StepParams)));
    upload(norm_, std::vector<float>(kDim, 1.0f));
  }

  // Rows [0, m) in batches of `batch` from `cursor` on, over a cache that starts as `before`.
  Result run(const Inputs& inputs, const std::vector<float>& before, int cursor, int m, int batch) {
    upload(cache_, before);
    upload(inv_freq_, inputs.inv_freq);
    Result result;
    for (int row = 0; row < m; row += batch) {
      check(cudaMemcpy(in_, inputs.rows.data() + size_t{kLd} * row, sizeof(float) * kLd * batch,
                       cudaMemcpyHostToDevice),
            "copy");
      StepParams step{};
      step.position = cursor + row;
      check(cudaMemcpy(step_, &step, sizeof step, cudaMemcpyHostToDevice), "copy");
      AttentionArgs a{};
      a.in = in_, a.q_norm = norm_, a.k_norm = norm_, a.inv_freq = inv_freq_, a.keys = cache_,
      a.values = cache_ + kKeyHeads * kHeadFloats;
      a.head_floats = kHeadFloats, a.partial = partial_, a.units = attention_units(kContext),
      a.out = out_, a.act = act_, a.m = batch, a.ld = kLd;
      a.q_heads = kQueryHeads, a.kv_heads = kKeyHeads, a.d = kDim, a.half = kRotary / 2,
      a.context = kContext, a.eps = 1e-6f, a.scale = 1.0f / std::sqrt(float{kDim});
      stream_.launch("prepare", kernel_attention_prepare,
                     dim3((kQueryHeads + kKeyHeads) / 4, batch), dim3(128), 0, 1, a, step_);
      stream_.launch("attention", kernel_attention<8, 8, 1>, dim3(132), dim3(kAttentionThreads),
                     sizeof(float) * attention_shared_floats(8, kDim), 1, a, step_);
      stream_.launch("merge", kernel_attention_merge, dim3(kQueryHeads, batch), dim3(kDim), 0, 1, a,
                     step_);
      check(cudaStreamSynchronize(stream_), "attention");
      std::vector<float> out(size_t{kQueryHeads} * kDim * batch);
      check(cudaMemcpy(out.data(), out_, out.size() * sizeof(float), cudaMemcpyDeviceToHost),
            "copy");
      result.out.insert(result.out.end(), out.begin(), out.end());
    }
    result.cache.resize(kCacheFloats);
    check(cudaMemcpy(result.cache.data(), cache_, kCacheFloats * sizeof(float),
                     cudaMemcpyDeviceToHost),
          "copy");
    return result;
  }

 private:
  float* floats(size_t n) { return static_cast<float*>(arena_.alloc(n * sizeof(float))); }
  void upload(float* to, const std::vector<float>& v) {
    check(cudaMemcpy(to, v.data(), v.size() * sizeof(float), cudaMemcpyHostToDevice), "copy");
  }

  Arena arena_;
  Stream stream_;
  float *cache_, *in_, *out_, *norm_, *inv_freq_, *partial_;
  uint8_t* act_;
  StepParams* step_;
};

std::vector<float> random(uint64_t key, size_t n) {
  const arith::SynthStream stream = arith::SynthStream::of(11, key);
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = arith::synth_float(stream, i, 0.0f, 1.0f);
  return v;
}

bool same(const float* a, const float* b, size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}
size_t key_at(int head, int position, int n) {
  return head * kHeadFloats + static_cast<size_t>(position / arith::kChunk) * kDim * arith::kChunk +
         static_cast<size_t>(n) * arith::kChunk + position % arith::kChunk;
}
size_t value_at(int head, int position) {
  return (kKeyHeads + head) * kHeadFloats + static_cast<size_t>(position) * kDim;
}

int failures = 0;
void expect(bool holds, int m, int cursor, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("M %d, cursor %d: %s\n", m, cursor, what);
}

void check_case(Proof& proof, int m, int cursor) {
  Inputs inputs{random(1, size_t{kMost} * kLd), {}};
  for (int i = 0; i < kRotary / 2; ++i)
    inputs.inv_freq.push_back(static_cast<float>(std::pow(1e7, -2.0 * i / kRotary)));
  std::vector<float> before = random(2, kCacheFloats);
  for (int head = 0; head < kKeyHeads; ++head)  // past the cursor: what no row may see
    for (int p = cursor; p < kContext; ++p)
      for (int n = 0; n < kDim; ++n)
        before[key_at(head, p, n)] = before[value_at(head, p) + n] = NAN;

  const Result single = proof.run(inputs, before, cursor, m, 1),
               batch = proof.run(inputs, before, cursor, m, m);
  expect(same(single.cache.data(), batch.cache.data(), kCacheFloats), m, cursor,
         "the caches differ");
  expect(same(single.out.data(), batch.out.data(), single.out.size()), m, cursor,
         "the outputs differ");
  bool finite = true, appended = true, untouched = true;
  for (float x : batch.out) finite = finite && std::isfinite(x);
  expect(finite, m, cursor, "an output saw memory past its cursor");
  for (int head = 0; head < kKeyHeads; ++head) {
    for (int i = 0; i < m; ++i) {
      const float* row = inputs.rows.data() + size_t{kLd} * i;
      appended = appended && same(&batch.cache[value_at(head, cursor + i)],
                                  row + kValuesAt + head * kDim, kDim);
      // Keys: the dimensions that rotary leaves are x * r; so their quotients with the input are
      // one and the same up to rounding.
      const float* key = row + kKeysAt + head * kDim;
      double ss = 0;
      for (int n = 0; n < kDim; ++n) ss += double{key[n]} * key[n];
      for (int n = kRotary; n < kDim; ++n)
        appended = appended && std::fabs(batch.cache[key_at(head, cursor + i, n)] -
                                         key[n] / std::sqrt(ss / kDim + 1e-6)) <=
                                   1e-6 * (1 + std::fabs(key[n] * 16));
    }
    for (int p = 0; p < kContext; ++p)
      if (p < cursor || p >= cursor + m)
        untouched =
            untouched && same(&batch.cache[value_at(head, p)], &before[value_at(head, p)], kDim);
  }
  expect(appended, m, cursor, "the appended rows are not the inputs");
  expect(untouched, m, cursor, "a row outside the appended ones changed");
  if (m == 1) return;

  Inputs flat = inputs;  // one query and gate for all rows; keys and values stay different
  for (int i = 1; i < m; ++i)
    std::memcpy(flat.rows.data() + size_t{kLd} * i, flat.rows.data(), sizeof(float) * kKeysAt);
  const Result seen = proof.run(flat, before, cursor, m, m);
  const size_t width = size_t{kQueryHeads} * kDim;
  expect(!same(seen.out.data(), seen.out.data() + width * (m - 1), width), m, cursor,
         "flat queries, other keys: the first and the last row are equal");
  if (cursor != 0) return;

  for (float& f : flat.inv_freq) f = 0.0f;
  for (int i = 0; i < m; ++i) {
    std::memcpy(flat.rows.data() + size_t{kLd} * i, flat.rows.data(), sizeof(float) * kLd);
    for (int n = 0; n < kKeyHeads * kDim; ++n)
      flat.rows[size_t{kLd} * i + kValuesAt + n] =
          static_cast<float>(n % 61 - 30) / 64;  // sums of 8 are exact
  }
  const Result equal = proof.run(flat, before, cursor, m, m);
  for (int i = 1; i < m; ++i)
    expect(same(equal.out.data(), equal.out.data() + width * i, width), m, cursor,
           "one key and value everywhere: the rows differ");
}

}  // namespace proof

int main() {
  try {
    proof::Proof proof;
    int cases = 0;
    for (int m : {1, 2, 4, 8})
      for (int cursor : {0, 1, 5, 17, 63, 64, 65, 1000})
        proof::check_case(proof, m, cursor), ++cases;
    std::printf("q35_attn_m: %d cases, %d failures\n", cases, proof::failures);
    return proof::failures ? 1 : 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "q35_attn_m: %s\n", e.what());
    return 2;
  }
}
