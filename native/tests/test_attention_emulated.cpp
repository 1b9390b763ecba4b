// The CUDA kernels of attention, emulated on the CPU (emulation/emulation.h), against the CPU
// backend: appended caches, outputs and their quantized form by bytes, for every compiled kernel,
// in pieces and on grids of several sizes, with cursors around the borders of chunks and spans.
// What chance decides follows from the seed that a failure names. One line a failure; exit 1 then.
//
// Seen red with each of these planted: five warps on one query's scores (the line that af5d428
// mended), land() or the end of run() without its barrier, a warp's in place of the block's before
// exponentials(), prepare without the one after its norm, copy_wait one group too lax, four keys
// too few copied of the last chunk.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "arith/synth.h"
#include "kernels/attention.cuh"
#include "kernels/quantize.cuh"
#include "model/backend.h"

namespace vcuda::gpu {
constexpr int kShared = 227 * 1024;  // bytes of a block at most
// As kernel_attention declares it; with a margin in which writes past the end show.
alignas(16) thread_local float attention_memory[kShared / sizeof(float) + 1024];
}  // namespace vcuda::gpu

namespace {

using namespace vcuda;
using namespace vcuda::gpu;

constexpr int kMostRows = 8;
constexpr float kEps = 1e-6f;

struct Shape {
  int q_heads, kv_heads, d, rotary, context;  // context: a multiple of the chunk
  std::vector<int> cursors;
};

// Which of the kernels that give the same bits, and in which order their threads run.
struct Division {
  const AttentionKernel* kernel;
  AttentionRoom room;
  int grid;
  unsigned seed;
};

struct Memory {
  std::vector<float> rows, cache, out;
  std::vector<uint8_t> act;
};

std::vector<float> random_floats(uint64_t key, size_t n) {
  const auto stream = arith::SynthStream::of(11, key);
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = arith::synth_float(stream, i, 0.0f, 1.0f);
  return v;
}

class Case {
 public:
  Case(Backend& cpu, const Shape& shape, int cursor, int m) : s_(shape), cursor_(cursor), m_(m) {
    q_norm_ = random_floats(1, s_.d), k_norm_ = random_floats(2, s_.d);
    for (int i = 0; i < s_.rotary / 2; ++i)
      inv_freq_.push_back(static_cast<float>(std::pow(1e7, -2.0 * i / s_.rotary)));
    start_.rows = random_floats(3, size_t{kMostRows} * ld());
    start_.cache = random_floats(4, 2 * s_.kv_heads * head_floats());
    start_.out.assign(static_cast<size_t>(m_) * width(), 0.0f);
    start_.act.assign(groups() * act_stride(std::min(m_, kRowBlock)), 0);
    cpu.fill_kv(config(), start_.cache.data(), s_.context, cursor_, 0x7fc00000u);  // NaN: not read
    expect(cpu);
  }

  // Empty, or what differs.
  std::string run(const Division& by) const {
    Memory now = start_;
    const int units = attention_units(s_.context);
    std::vector<float4> partial(  // aligned as the kernels expect; NaN where nothing is written
        static_cast<size_t>(m_) * s_.q_heads * units * partial_pitch(s_.d) / 4,
        {NAN, NAN, NAN, NAN});
    std::vector<float4> rows_memory(now.rows.size() / 4), cache_memory(now.cache.size() / 4);
    AttentionArgs a{};
    a.in = &rows_memory[0].x, a.keys = &cache_memory[0].x;
    std::copy(now.rows.begin(), now.rows.end(), a.in);
    std::copy(now.cache.begin(), now.cache.end(), a.keys);
    a.values = a.keys + s_.kv_heads * head_floats();
    a.q_norm = q_norm_.data(), a.k_norm = k_norm_.data(), a.inv_freq = inv_freq_.data();
    a.head_floats = head_floats(), a.partial = &partial[0].x, a.units = units;
    a.out = now.out.data(), a.act = now.act.data();
    a.m = m_, a.ld = ld(), a.q_heads = s_.q_heads, a.kv_heads = s_.kv_heads, a.d = s_.d;
    a.half = s_.rotary / 2, a.eps = kEps, a.scale = 1.0f / std::sqrt(static_cast<float>(s_.d));
    a.room = by.room;
    StepParams step{};
    step.position = cursor_;

    const unsigned rows = m_, heads = s_.q_heads, all = s_.q_heads + s_.kv_heads;
    const int floats = attention_shared_floats(6 * by.kernel->many, by.kernel->v, by.room.piece);
    auto launch = [&](dim3 grid, unsigned threads, int shared, auto kernel) {
      return emulation::launch(
          by.seed, grid, threads,
          {attention_memory, shared * sizeof(float), shared ? sizeof attention_memory : 0},
          [&] { kernel(a, &step); });
    };
    const char* fault = launch({(all + 3) / 4, rows}, 128, 0, kernel_attention_prepare);
    if (!fault) fault = launch(by.grid, kAttentionThreads, floats, by.kernel->kernel);
    if (!fault) fault = launch({heads, rows}, ceil_div(s_.d, 32) * 32, 0, kernel_attention_merge);
    if (fault) return fault;
    std::copy_n(a.keys, now.cache.size(), now.cache.data());
    const std::string cache = differs("cache", now.cache, expected_.cache),
                      out = differs("out", now.out, expected_.out),
                      act = differs("act", now.act, expected_.act);
    return !cache.empty() ? cache : !out.empty() ? out : act;
  }

  std::string name(const Division& by) const {
    char text[200];
    std::snprintf(text, sizeof text,
                  "D %d, heads %d/%d, M %d, cursor %d, tiles of %d queries, pieces of %d, grid %d, "
                  "seed %u",
                  s_.d, s_.q_heads, s_.kv_heads, m_, cursor_, 6 * by.kernel->many, by.room.piece,
                  by.grid, by.seed);
    return text;
  }

 private:
  int ld() const { return 2 * (s_.q_heads + s_.kv_heads) * s_.d; }
  int width() const { return s_.q_heads * s_.d; }
  size_t head_floats() const { return static_cast<size_t>(s_.context) * s_.d; }
  size_t groups() const { return s_.d % arith::kGroup == 0 ? width() / arith::kGroup : 0; }
  Config config() const {
    Config c{};
    c.q_heads = s_.q_heads, c.kv_heads = s_.kv_heads, c.head_dim = s_.d, c.rotary_dim = s_.rotary;
    c.rms_eps = kEps;
    return c;
  }

  void expect(Backend& cpu) {
    expected_ = start_;
    Layer layer{};
    layer.attention.q_norm = q_norm_.data(), layer.attention.k_norm = k_norm_.data();
    Weights weights;
    weights.inv_freq = inv_freq_.data();
    StepInput in{};
    in.m = m_, in.position = cursor_, in.context = s_.context;
    std::vector<char> act(cpu.act_bytes(width(), m_));  // in an order of the CPU's own
    cpu.attention(layer, config(), weights, in, expected_.cache.data(), expected_.rows.data(),
                  {expected_.out.data(), act.data()});
    if (groups() == 0) return;
    emulation::launch(0, dim3((static_cast<unsigned>(groups()) + 7) / 8, m_), 256, {}, [&] {
      kernel_quantize(expected_.out.data(), width(), m_, expected_.act.data());
    });
  }

  template <class T>
  static std::string differs(const char* what, const std::vector<T>& is, const std::vector<T>& be) {
    for (size_t i = 0; i < be.size(); ++i)
      if (std::memcmp(&is[i], &be[i], sizeof(T)) != 0) {
        char text[120];
        std::snprintf(text, sizeof text, "%s[%zu] is %.9g, must be %.9g", what, i,
                      static_cast<double>(is[i]), static_cast<double>(be[i]));
        return text;
      }
    return {};
  }

  const Shape& s_;
  const int cursor_, m_;
  std::vector<float> q_norm_, k_norm_, inv_freq_;
  Memory start_, expected_;
};

// Every compiled kernel for D, in the largest pieces and in smaller ones, on few blocks and on more
// than there are tasks at a small cursor.
std::vector<Division> divisions(int d) {
  std::vector<Division> all;
  for (const AttentionKernel& k : kAttentionKernels)
    for (int piece = kAttentionPiece; piece >= 1024; piece /= 2)
      for (int grid : {3, 40}) {
        AttentionRoom room;
        const int q = 6 * k.many, bytes = 4 * attention_shared_floats(q, k.v, piece);
        if (k.v == ceil_div(d, 256) && bytes <= kShared && attention_room(q, k.v, d, bytes, room) &&
            room.piece == piece)
          all.push_back({&k, room, grid, 0});
      }
  return all;
}

}  // namespace

int main() {
  const Shape shapes[] = {{12, 2, 64, 16, 1216, {0, 61, 450, 1021}},
                          {6, 1, 256, 64, 640, {0, 62, 300, 509}},
                          {5, 1, 80, 80, 1088, {64, 1021}},
                          {3, 1, 16, 2, 8256, {1, 8184, 8189}},
                          {3, 1, 512, 512, 192, {0, 61, 127}}};
  const std::unique_ptr<Backend> cpu = make_backend(vcuda_dev_options{});
  constexpr int kMostFailures = 10;
  int cases = 0, failures = 0;
  for (const Shape& shape : shapes) {
    const std::vector<Division> all = divisions(shape.d);
    size_t next = 0;  // each case takes the next few
    for (int cursor : shape.cursors)
      for (int m : {1, 2, 5, 8}) {
        const Case c(*cpu, shape, cursor, m);
        for (int i = 0; i < 5 && failures < kMostFailures; ++i, ++next, ++cases) {
          Division by = all[next % all.size()];
          by.seed = static_cast<unsigned>(cases);
          const std::string difference = c.run(by);
          if (difference.empty()) continue;
          ++failures;
          std::printf("%s: %s\n", c.name(by).c_str(), difference.c_str());
        }
      }
  }
  std::printf("%d cases, %d failures\n", cases, failures);
  return failures != 0;
}
