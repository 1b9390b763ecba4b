// The projection's kernels for Hopper (kernels/project_q4_ring.cuh), whole, emulated on the CPU
// (emulation/emulation.h) against the CPU backend: outputs by bytes, for every compiled number of
// tiles and M, in rings of two stages and more, with copies and messages that land in any order;
// what is added to, float32 rows beside, norms that the blocks make, gates and ups with their
// swiglu. What chance decides follows from the seed that a failure names. One line a failure; exit
// 1 then.
//
// Seen red with each of these planted: weights told before they have landed, or not at all; a stage
// filled before it is given back, given back before it is read, full with its weights alone; lane
// sums written over; no wait for rows, factors, the norm's end, the other block's beginning or its
// sums; reducers that do not wait for each other, before or (ring_reduce) behind the exchange;
// pacing by another phase; activations of another superstep, of a group too few or too many;
// weights of another slab; a digit's weight, starts of the upper rows, another norm weight; of a
// pair of tiles the other's columns, scales or results; a float32 row left out; regions of shared
// memory too small; outputs of a row or column too many; other weights asked for next.
//
// Not seen here: an access that is behind an arrival in the program and before it in time, since
// every access of a thread is done when the next one begins (NOTES.md has that race). Nor, with
// these seeds, ring_gate without the wait behind its exchange: it takes a reducer that sends
// nothing in the next pass and rests until the other block is two passes on; 3 of 700 gated cases
// that were drawn apart had that.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "arith/synth.h"
#include "kernels/project_q4_ring.cuh"
#include "kernels/quantize.cuh"
#include "model/backend.h"
#include "model/tensor.h"

namespace {

using namespace vcuda;
using namespace vcuda::gpu;

constexpr int kShared = 227 << 10;
constexpr float kEps = 1e-6f;

struct Case {
  int tiles, m, rows, groups, clusters, stages;  // stages: 0: as many as the kernel takes
  int floats;                                    // float32 rows beside
  bool add, norm, gated;
  bool outputs, swiglu;  // of gates and ups
  unsigned seed;
  int cols() const { return groups * arith::kGroup; }
};

std::vector<float> random_floats(uint64_t key, size_t n, float offset, float scale) {
  const auto stream = arith::SynthStream::of(5, key);
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = arith::synth_float(stream, i, offset, scale);
  return v;
}

// Aligned as bulk copies want it; behind the end room that nobody may write.
template <class T>
class Aligned {
 public:
  explicit Aligned(size_t n) : memory_((n * sizeof(T) + kBehind) / sizeof(float4) + 1), n_(n) {
    std::memset(data() + n_, kPattern, kBehind);
  }
  explicit Aligned(const std::vector<T>& v) : Aligned(v.size()) {
    std::copy(v.begin(), v.end(), data());
  }
  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  bool same(const T* other) { return std::memcmp(data(), other, n_ * sizeof(T)) == 0; }
  bool written_past() {
    const auto* p = reinterpret_cast<const unsigned char*>(data() + n_);
    return std::any_of(p, p + kBehind, [](unsigned char b) { return b != kPattern; });
  }

 private:
  static constexpr size_t kBehind = 1 << 14;  // a row of the outputs, say
  static constexpr unsigned char kPattern = 0xa5;
  std::vector<float4> memory_;
  size_t n_;
};

void quantize_rows(const float* x, int cols, int m, uint8_t* act) {
  emulation::launch(
      0, dim3(static_cast<unsigned>(ceil_div(cols / arith::kGroup, 8)), static_cast<unsigned>(m)),
      256, {}, [&] { kernel_quantize(x, cols, m, act); });
}

class Projecting {
 public:
  Projecting(Backend& cpu, const Case& c) : cpu_(cpu), c_(c) {
    const size_t cols = static_cast<size_t>(c.cols()), m = static_cast<size_t>(c.m);
    for (auto& t : tensors_) {
      t.struct_size = sizeof t, t.type = VCUDA_Q4, t.name = "w";
      t.synth = {9, 20 + static_cast<uint64_t>(&t - tensors_), 0.0f,
                 0.2f / std::sqrt(static_cast<float>(cols))};
    }
    tensors_[2].type = VCUDA_F32, tensors_[2].synth.scale = 0.1f;
    x_ = random_floats(1, m * cols, 0.0f, 2.0f);
    for (size_t i = 0; i < x_.size(); i += 13) x_[i] = -0.0f;
    std::fill_n(x_.begin() + arith::kGroup * (c.groups - 1), arith::kGroup, -0.0f);
    w_ = random_floats(2, cols, 1.0f, 0.5f);
    y_ = random_floats(3, m * ld(), 0.0f, 1.0f);
    expect();
  }
  ~Projecting() { cpu_.free_all(); }
  Projecting(const Projecting&) = delete;

  // Empty, or what is wrong.
  template <int R, Form F>
  std::string run() {
    const int m = c_.m, half = c_.rows / 2;
    Q4Shape q{c_.rows, c_.groups, 2, R, 0};
    const int clusters = std::min(c_.clusters, q.slabs());
    if (c_.gated) q.gated = clusters;
    RingPlan plan(q, m, clusters, kShared, c_.norm);
    if (c_.stages && c_.stages < plan.stages)
      plan = RingPlan(
          q, m, clusters,
          plan.ring + c_.stages * plan.stage + (F != Form::kMany && !c_.norm ? kBesideBytes : 0),
          c_.norm);
    if (!plan.fits() || plan.bytes > kShared) return "no ring";

    Aligned<uint32_t> weights(q.bytes() / 4);
    pack(q, weights.data());
    Aligned<float> x(x_), w(w_), h(h_), y(y_), float_w(float_w_),
        swiglu(std::vector<float>(static_cast<size_t>(c_.gated ? m * half : 0), -7.0f));
    Aligned<uint8_t> act(act_block_offset(c_.groups, 1)), swiglu_act(swiglu_act_.size());
    quantize_rows(h.data(), c_.cols(), m, act.data());
    Aligned<float4> shared(static_cast<size_t>(c_.rows) / 16 * 32 + 1);
    std::vector<int> arrived(static_cast<size_t>(c_.rows) / 64 + 1);

    Projection p{};
    p.weights = reinterpret_cast<uint8_t*>(weights.data()), p.q = q;
    if (c_.norm) p.norm = {x.data(), w.data(), kEps};
    else p.act = act.data();
    p.out = {c_.outputs ? y.data() : nullptr, static_cast<int>(ld()), c_.rows, m, c_.add};
    if (c_.floats)
      p.floats = {float_w.data(), c_.norm ? x.data() : h.data(), y.data() + c_.rows, c_.floats,
                  c_.cols()};
    p.gated = {c_.swiglu ? swiglu.data() : nullptr, c_.swiglu ? swiglu_act.data() : nullptr,
               shared.data(), arrived.data()};

    // The next projection's weights: these ones again.
    const uint32_t stride =
        static_cast<uint32_t>(q.bytes() / static_cast<size_t>(2 * clusters)) / 128 * 128;
    p.next = {p.weights, static_cast<uint32_t>(2 * clusters), stride, std::min(stride, 4096u)};
    cluster_emulation.ahead = reinterpret_cast<const char*>(p.weights);
    cluster_emulation.ahead_bytes = q.bytes(), cluster_emulation.prefetches = 0;

    alignas(128) static uint8_t memory[2 * kShared + 1024];
    const size_t bytes = static_cast<size_t>(plan.bytes + 127) / 128 * 128;
    cluster_emulation.clear();
    cluster_emulation.bytes = bytes, cluster_emulation.chance = c_.seed;
    const char* fault = emulation::launch(
        c_.seed, dim3(static_cast<unsigned>(2 * clusters)), kRingThreads,
        {memory, 2 * bytes, 2 * bytes + 1024},
        [&] {
          project_ring<R, F>(memory + static_cast<size_t>(ClusterEmulation::rank()) * bytes, p,
                             plan);
        },
        2);
    if (fault) return fault;
    if (cluster_emulation.open()) return "the end came before something that was on its way";
    if (y.written_past() || swiglu.written_past() || swiglu_act.written_past())
      return "a write past the outputs";
    if (cluster_emulation.prefetches != p.next.blocks) return "a block that asked for nothing next";
    if (c_.outputs && !y.same(expected_.data())) return "outputs differ";
    if (c_.swiglu && !swiglu.same(expected_swiglu_)) return "swiglu differs";
    if (c_.swiglu && !swiglu_act.same(swiglu_act_.data())) return "the quantized swiglu differs";
    if (std::any_of(arrived.begin(), arrived.end(), [](int n) { return n != 0; }))
      return "a count of shared units is not 0 again";
    return "";
  }

 private:
  size_t ld() const { return static_cast<size_t>(c_.rows + c_.floats); }

  void expect() {
    const int m = c_.m, half = c_.rows / 2, cols = c_.cols();
    auto room = [&](int n) {
      return Rows{static_cast<float*>(cpu_.alloc(static_cast<size_t>(m) * n * sizeof(float))),
                  cpu_.alloc(cpu_.act_bytes(n, m))};
    };
    static const StateSlot none{};
    cpu_.begin({nullptr, m, 0, 1, &none, &none, -1});
    Linear l{c_.rows + c_.floats, cols, {}};
    auto part = [&](Part p, int row0, int rows) {
      p.row0 = row0, p.rows = rows;
      l.parts.push_back(p);
    };
    if (c_.gated)
      part(cpu_.upload_matrix({{&tensors_[0], half, cols}, {&tensors_[1], half, cols}}, true), 0,
           c_.rows);
    else part(cpu_.upload_matrix({{&tensors_[0], c_.rows, cols}}), 0, c_.rows);
    if (c_.floats) {
      part(cpu_.upload_matrix({{&tensors_[2], c_.floats, cols}}), c_.rows, c_.floats);
      for (size_t i = 0; i < static_cast<size_t>(c_.floats) * static_cast<size_t>(cols); ++i)
        float_w_.push_back(tensor_float(tensors_[2], i));
    }
    const Rows h = room(cols);
    cpu_.rms_norm(x_.data(), w_.data(), cols, kEps, m, h);
    h_.assign(h.x, h.x + static_cast<size_t>(m) * static_cast<size_t>(cols));
    expected_ = y_;
    if (c_.add) cpu_.project_add(l, h, m, expected_.data());
    else cpu_.project(l, h, m, expected_.data());
    if (!c_.gated) return;
    const Rows out = room(half);
    cpu_.swiglu(expected_.data(), half, m, out);
    expected_swiglu_ = out.x;
    swiglu_act_.resize(static_cast<size_t>(half / arith::kGroup) *
                       static_cast<size_t>(act_stride(m)));
    quantize_rows(out.x, half, m, swiglu_act_.data());
  }

  void pack(const Q4Shape& q, uint32_t* to) const {
    Q4Sources all{};
    for (int i = 0; i <= static_cast<int>(c_.gated); ++i) {
      const int each = c_.gated ? c_.rows / 2 : c_.rows;
      all.source[all.count++] = {
          nullptr,  nullptr,       synth_stream(tensors_[i]), tensors_[i].synth.scale,
          i * each, (i + 1) * each};
    }
    emulation::blockDim = dim3(256);
    for (size_t i = 0; i < q.bytes() / 4; ++i) {
      emulation::blockIdx = dim3(static_cast<unsigned>(i / 256));
      emulation::threadIdx = dim3(static_cast<unsigned>(i % 256));
      kernel_pack_q4(all, q, to);
    }
  }

  Backend& cpu_;
  const Case c_;
  vcuda_tensor tensors_[3] = {};  // the matrix, or gates and ups; float32 rows
  std::vector<float> x_, w_, y_, h_, float_w_, expected_;
  const float* expected_swiglu_ = nullptr;
  std::vector<uint8_t> swiglu_act_;
};

template <int R>
std::string run(Projecting p, int m) {
  switch (form_of(m)) {
    case Form::kPairs: return p.run<R, Form::kPairs>();
    case Form::kFew: return p.run<R, Form::kFew>();
    default: return p.run<R, Form::kMany>();
  }
}

std::string run(Backend& cpu, const Case& c) {
  switch (c.tiles) {
    case 2: return run<2>({cpu, c}, c.m);
    case 5: return run<5>({cpu, c}, c.m);
    case 7: return run<7>({cpu, c}, c.m);
    case 8: return run<8>({cpu, c}, c.m);
    default: return run<11>({cpu, c}, c.m);
  }
}

}  // namespace

int main() {
  const std::unique_ptr<Backend> cpu = make_backend(vcuda_dev_options{});
  int cases = 0, failures = 0;
  for (int tiles : {2, 5, 7, 8, 11})
    for (int m = 1; m <= 8; ++m)
      for (int i = 0; i < (tiles >= 7 ? 28 : 16); ++i) {
        Case c{};
        c.tiles = tiles, c.m = m, c.seed = static_cast<unsigned>(++cases);
        const auto stream = arith::SynthStream::of(6, c.seed);
        uint64_t drawn = 0;
        auto below = [&](int n) {
          return static_cast<int>(stream.word(drawn++) % static_cast<uint64_t>(n));
        };
        auto one_of = [&](std::vector<int> v) {
          return v[static_cast<size_t>(below(static_cast<int>(v.size())))];
        };
        const bool passes = i >= 16;          // of gated rows many, and little in each
        const int kind = passes ? 3 : i % 4;  // plain, with float32 rows, added to, gated
        const bool behind_norm = tiles >= 7;
        c.norm = behind_norm && m <= 2 && kind != 2 && one_of({0, 1, 1});
        c.add = kind == 2, c.gated = kind == 3 && behind_norm;
        c.floats = kind == 1 ? one_of({1, 3, 4, 8}) : 0;
        const int given = one_of({0, 1, 2});
        c.outputs = !c.gated || given != 0, c.swiglu = c.gated && given != 1;
        // Few groups and many: of a part of a superstep, where a block may have none, of ten.
        c.groups = passes   ? 1 + below(16)
                   : c.norm ? one_of({7, 9, 31, 40, 160})
                            : one_of({1, 8, 9, 16, 23, 31, 40});
        c.clusters = passes ? 1 + below(3) : one_of({1, 2, 3, 5});
        c.stages = one_of({0, 2, 3, 4});
        const int slabs = c.groups > 40 ? one_of({1, 2}) : one_of({1, 2, 4, 6});
        // Units fill the slabs, or are any number; the last slab's other rows are whole or not.
        const int units = passes ? 10 + below(30) : one_of({(tiles * slabs + 3) / 4, 1, 9, 22, 33});
        c.rows = c.gated ? units * 64 : tiles * slabs * 16 - one_of({0, 5, 10, below(tiles * 16)});
        const std::string what = run(*cpu, c);
        if (what.empty()) continue;
        std::printf(
            "%d rows, %d groups, %d tiles, M %d, %d clusters, %d stages%s%s%s, %d float32 "
            "rows, seed %u: %s\n",
            c.rows, c.groups, c.tiles, c.m, c.clusters, c.stages, c.add ? ", added" : "",
            c.norm ? ", norm" : "", c.gated ? ", gated" : "", c.floats, c.seed, what.c_str());
        if (++failures == 20) return 1;
      }
  std::printf("%d projections\n", cases);
  return failures ? 1 : 0;
}
