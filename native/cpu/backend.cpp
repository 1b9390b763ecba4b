// The CPU backend: the operations of model/backend.h as parallel loops over an instruction set's
// functions.
#include "model/backend.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "arith/bits.h"
#include "arith/half.h"
#include "arith/trig.h"
#include "cpu/isa.h"
#include "cpu/pool.h"
#include "model/error.h"
#include "model/tensor.h"

namespace vcuda {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kLargePage = size_t{2} << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads) : isa_(choose_isa()), pool_(threads) {}
  ~CpuBackend() override { CpuBackend::free_all(); }

  void* alloc(size_t bytes) override {
    owned_.reserve(owned_.size() + 1);  // so that nothing fails between the allocation and its note
    // Weights are read once a step from end to end: on large pages no address translation is waited
    // for.
    const size_t align = bytes < 2 * kLargePage ? kAlign : kLargePage;
    const size_t size = round_up(bytes ? bytes : 1, align);
    void* p = std::aligned_alloc(align, size);
    if (!p) fail(VCUDA_E_MEMORY, "out of memory: %zu bytes asked for", bytes);
#if defined(MADV_HUGEPAGE)
    if (align == kLargePage) madvise(p, size, MADV_HUGEPAGE);  // a wish: refused, pages stay small
#endif
    owned_.push_back(p);
    return p;
  }

  void free_all() override {
    for (void* p : owned_) std::free(p);
    owned_.clear();
    scratch_ = nullptr;
    scratch_floats_ = 0;
  }

  size_t act_bytes(int cols, int rows) const override {
    return static_cast<size_t>(cols / arith::kGroup) * rows * sizeof(ActGroup);
  }

  // Keys [Hkv][chunks][D][64], then values [Hkv][chunks*64][D].
  size_t kv_bytes(const Config& c, int context) const override {
    return 2 * kv_head_floats(c, context) * c.kv_heads * sizeof(float);
  }

  void zero(void* p, size_t bytes) override { std::memset(p, 0, bytes); }

  void fill(void* p, size_t bytes, uint32_t word) override {
    std::fill_n(static_cast<uint32_t*>(p), bytes / sizeof word, word);
  }

  void fill_kv(const Config& c, void* kv, int context, int position, uint32_t word) override {
    const size_t head_floats = kv_head_floats(c, context), d = c.head_dim;
    uint32_t* heads = static_cast<uint32_t*>(kv);
    for (int h = 0; h < 2 * c.kv_heads; ++h, heads += head_floats)
      for (size_t t = position; t < head_floats / d; ++t)
        for (size_t n = 0; n < d; ++n)
          heads[h < c.kv_heads ? key_index(t, n, d) : t * d + n] = word;
  }

  void fill_scratch(uint32_t word) override { fill(scratch_, scratch_floats_ * sizeof word, word); }

  void read(void* host, const void* p, size_t bytes) override { std::memcpy(host, p, bytes); }

  float* upload_floats(const std::vector<float>& v) override {
    float* p = static_cast<float*>(alloc(v.size() * sizeof(float)));
    std::memcpy(p, v.data(), v.size() * sizeof(float));
    return p;
  }

  void* upload_embedding(const Tensor& e) override {
    const vcuda_tensor& t = *e.t;
    const size_t element = t.type == VCUDA_F32 ? 4 : 2, cols = static_cast<size_t>(e.cols);
    char* p = static_cast<char*>(alloc(static_cast<size_t>(e.rows) * cols * element));
    pool_.run_ranges(static_cast<int>(e.rows), cols * element, [&](int begin, int end) {
      const size_t first = begin * cols, count = (end - begin) * cols;
      if (t.data) {
        std::memcpy(p + first * element, static_cast<const char*>(t.data) + first * element,
                    count * element);
        return;
      }
      for (size_t i = first; i < first + count; ++i) {
        const float x = tensor_float(t, i);  // already rounded to the type
        const uint16_t h =
            t.type == VCUDA_F16 ? arith::float_to_half(x) : arith::float_to_bfloat(x);
        if (t.type == VCUDA_F32) std::memcpy(p + i * 4, &x, 4);
        else std::memcpy(p + i * 2, &h, 2);
      }
    });
    return p;
  }

  Part upload_matrix(const std::vector<Tensor>& stacked, bool) override {
    Part part;
    part.q4 = stacked[0].t->type == VCUDA_Q4;
    for (const Tensor& t : stacked) part.rows += static_cast<int>(t.rows);
    part.data = part.q4 ? upload_q4(stacked, part.rows) : upload_float(stacked, part.rows);
    return part;
  }

  void begin(const StepInput&) override {}

  void embed(const Weights& w, const Config& c, const StepInput& in, float* x) override {
    for (int i = 0; i < in.m; ++i) {
      const size_t first = static_cast<size_t>(in.tokens[i]) * c.hidden;
      float* row = x + static_cast<size_t>(i) * c.hidden;
      if (w.embedding_type == VCUDA_F32) {
        std::memcpy(row, static_cast<const float*>(w.embedding) + first, sizeof(float) * c.hidden);
        continue;
      }
      const uint16_t* e = static_cast<const uint16_t*>(w.embedding) + first;
      for (int j = 0; j < c.hidden; ++j)
        row[j] = w.embedding_type == VCUDA_F16 ? arith::half_to_float(e[j])
                                               : arith::bfloat_to_float(e[j]);
    }
  }

  void rms_norm(const float* x, const float* w, int n, float eps, int m, Rows y) override {
    pool_.run(m, 16 * static_cast<size_t>(n), [&](int i) {
      const size_t row = static_cast<size_t>(i) * n;
      isa_.rms_norm(x + row, w, n, eps, y.x + row);
      isa_.quantize(y.x + row, 0, n / arith::kGroup, i, m, static_cast<ActGroup*>(y.act));
    });
  }

  void project(const Linear& l, Rows x, int m, float* y) override { apply(l, x, m, y, false); }
  void project_add(const Linear& l, Rows y, int m, float* x) override { apply(l, y, m, x, true); }

  void gdn(const Layer& l, const Config& c, const StepInput& in, float* rows, Rows out) override {
    const int m = in.m, k_heads = c.gdn_k_heads, dk = c.gdn_k_dim, dv = c.gdn_v_dim,
              taps = c.conv_kernel, history = taps - 1;
    const size_t ld_in = c.gdn_rows(), ld = c.conv_dim(), ld_out = c.value_dim();
    const float* from = in.from->conv + l.index * c.conv_size();
    float* to = in.to->conv + l.index * c.conv_size();
    float* y = scratch(m * ld);
    const float q_factor = 1.0f / std::sqrt(static_cast<float>(dk));

    // Input of tap j for row i: row i - history + j of the batch, or the history's where that is
    // negative.
    auto input = [&](int row, size_t channel) {
      return row < 0 ? from + (row + history) * ld + channel : rows + row * ld_in + channel;
    };
    // Heads of q, of k, of v: convolution, then the norm of q and k.
    pool_.run(2 * k_heads + c.gdn_v_heads, 32 * static_cast<size_t>(m) * dk, [&](int task) {
      const bool is_v = task >= 2 * k_heads;
      const int width = is_v ? dv : dk;
      const size_t channel = is_v ? 2 * c.key_dim() + static_cast<size_t>(task - 2 * k_heads) * dv
                                  : static_cast<size_t>(task) * dk;
      for (int i = 0; i < m; ++i) {
        const float* taps_in[16];
        for (int j = 0; j < taps; ++j) taps_in[j] = input(i - history + j, channel);
        float* head = y + i * ld + channel;
        isa_.conv_silu(taps_in, l.gdn.conv + channel, ld, taps, width, head);
        if (!is_v) isa_.l2_norm(head, width, q_factor, task < k_heads);
      }
      for (int j = 0; j < history; ++j)
        std::memcpy(to + j * ld + channel, input(m - history + j, channel), width * sizeof(float));
    });

    const size_t z = c.conv_dim(), b = z + c.value_dim(), a = b + c.gdn_v_heads;
    pool_.run(c.gdn_v_heads, 8 * static_cast<size_t>(m) * dk * dv, [&](int j) {
      const size_t k_head = static_cast<size_t>(j / (c.gdn_v_heads / k_heads)) * dk,
                   s = (l.index * static_cast<size_t>(c.gdn_v_heads) + j) * dk * dv;
      GdnHead h{};
      h.q = y + k_head;
      h.k = y + c.key_dim() + k_head;
      h.v = y + 2 * c.key_dim() + static_cast<size_t>(j) * dv;
      h.z = rows + z + static_cast<size_t>(j) * dv;
      h.ld = ld, h.ld_in = ld_in, h.ld_out = ld_out;
      h.b = rows + b + j;
      h.a = rows + a + j;
      h.a_neg = l.gdn.a_neg[j], h.dt_bias = l.gdn.dt_bias[j], h.eps = c.rms_eps;
      h.norm = l.gdn.norm;
      h.s_from = in.from->s + s;
      h.s_to = in.to->s + s;
      h.out = out.x + static_cast<size_t>(j) * dv;
      h.m = m, h.dk = dk, h.dv = dv;
      isa_.gdn_head(h);
    });
    quantize(out, static_cast<int>(ld_out), m);
  }

  void attention(const Layer& l, const Config& c, const Weights& w, const StepInput& in, void* kv,
                 float* rows, Rows out) override {
    const int m = in.m, d = c.head_dim, per_kv = c.q_heads / c.kv_heads, half = c.rotary_dim / 2;
    const size_t ld = c.attention_rows(), ld_out = c.attention_dim();
    const size_t head_floats = kv_head_floats(c, in.context);
    float* keys = static_cast<float*>(kv);
    float* values = keys + head_floats * c.kv_heads;

    float* sines = scratch(2 * static_cast<size_t>(m) * half);  // [m][half] sine, cosine
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < half; ++j) {
        double s, co;
        arith::sincos64(static_cast<double>(in.position + i) * static_cast<double>(w.inv_freq[j]),
                        s, co);
        sines[2 * (static_cast<size_t>(i) * half + j)] = static_cast<float>(s);
        sines[2 * (static_cast<size_t>(i) * half + j) + 1] = static_cast<float>(co);
      }
    auto rotate = [&](float* x, int row) {
      for (int j = 0; j < half; ++j) {
        const float s = sines[2 * (static_cast<size_t>(row) * half + j)],
                    co = sines[2 * (static_cast<size_t>(row) * half + j) + 1];
        const float a = x[j], b = x[j + half];
        x[j] = arith::fma32(a, co, -(b * s));
        x[j + half] = arith::fma32(b, co, a * s);
      }
    };
    const int heads = c.q_heads + c.kv_heads;
    // Norm and rotary of query and key heads; keys and values into the cache.
    pool_.run(m * heads, 32 * static_cast<size_t>(d), [&](int task) {
      const int i = task / heads, h = task % heads;
      float* row = rows + i * ld;
      if (h < c.q_heads) {
        float* q = row + static_cast<size_t>(h) * 2 * d;
        isa_.head_norm(q, l.attention.q_norm, d, c.rms_eps, q);
        return rotate(q, i);
      }
      const int kv_head = h - c.q_heads;
      float* k = row + c.q_rows() + static_cast<size_t>(kv_head) * d;
      const float* v = k + c.kv_rows();
      isa_.head_norm(k, l.attention.k_norm, d, c.rms_eps, k);
      rotate(k, i);
      const int position = in.position + i;
      float* to = keys + kv_head * head_floats + key_index(position, 0, d);
      for (int n = 0; n < d; ++n) to[static_cast<size_t>(n) * arith::kChunk] = k[n];
      std::memcpy(values + kv_head * head_floats + static_cast<size_t>(position) * d, v,
                  d * sizeof(float));
    });
    pool_.run(m * c.kv_heads, 8 * static_cast<size_t>(in.position + m) * d * per_kv, [&](int task) {
      const int i = task / c.kv_heads, kv_head = task % c.kv_heads;
      AttentionHead h{};
      h.q = rows + i * ld + static_cast<size_t>(kv_head) * per_kv * 2 * d;
      h.gate = h.q + d;
      h.ld_q = 2 * static_cast<size_t>(d);
      h.keys = keys + kv_head * head_floats;
      h.values = values + kv_head * head_floats;
      h.out = out.x + i * ld_out + static_cast<size_t>(kv_head) * per_kv * d;
      h.r = per_kv, h.d = d, h.visible = in.position + i + 1;
      h.scale = 1.0f / std::sqrt(static_cast<float>(d));
      isa_.attention_head(h);
    });
    quantize(out, static_cast<int>(ld_out), m);
  }

  void swiglu(const float* gate_up, int n, int m, Rows out) override {
    const int groups = n / arith::kGroup;
    pool_.run_ranges(groups, 32 * static_cast<size_t>(m) * arith::kGroup, [&](int begin, int end) {
      for (int i = 0; i < m; ++i) {
        const float* gate = gate_up + static_cast<size_t>(i) * 2 * n + begin * arith::kGroup;
        float* row = out.x + static_cast<size_t>(i) * n;
        isa_.swiglu(gate, gate + n, (end - begin) * arith::kGroup, row + begin * arith::kGroup);
        isa_.quantize(row, begin, end, i, m, static_cast<ActGroup*>(out.act));
      }
    });
  }

  bool end(const Config& c, int m, const float* h, const float* logits, float* h_out,
           float* logits_out) override {
    const size_t hn = static_cast<size_t>(m) * c.hidden, ln = static_cast<size_t>(m) * c.vocab;
    if (!finite(h, hn) || !finite(logits, ln)) return false;
    std::memcpy(h_out, h, hn * sizeof(float));
    std::memcpy(logits_out, logits, ln * sizeof(float));
    return true;
  }

  void read_s(const Config& c, const float* s, float* out) override {
    std::memcpy(out, s, c.s_size() * sizeof(float));
  }

  void read_conv(const Config& c, const float* conv, float* out) override {
    const int channels = c.conv_dim(), history = c.conv_kernel - 1;
    for (int i = 0; i < channels; ++i)
      for (int j = 0; j < history; ++j)
        out[static_cast<size_t>(i) * history + j] = conv[static_cast<size_t>(j) * channels + i];
  }

  void read_kv(const Config& c, const void* kv, int context, int position, bool keys,
               float* out) override {
    const size_t head_floats = kv_head_floats(c, context), d = c.head_dim;
    const float* base = static_cast<const float*>(kv) + (keys ? 0 : head_floats * c.kv_heads);
    for (int h = 0; h < c.kv_heads; ++h)
      for (int t = 0; t < position; ++t, out += d) {
        const float* head = base + h * head_floats;
        if (!keys) {
          std::memcpy(out, head + t * d, d * sizeof(float));
          continue;
        }
        const float* column =
            head + static_cast<size_t>(t / arith::kChunk) * d * arith::kChunk + t % arith::kChunk;
        for (size_t n = 0; n < d; ++n) out[n] = column[n * arith::kChunk];
      }
  }

 private:
  // Keys of a chunk are neighbours: dimension n of the key at position t, in [chunks][D][64].
  static size_t key_index(size_t t, size_t n, size_t d) {
    return (t / arith::kChunk * d + n) * arith::kChunk + t % arith::kChunk;
  }

  static size_t kv_head_floats(const Config& c, int context) {
    return round_up(static_cast<size_t>(context), arith::kChunk) * c.head_dim;
  }

  // Memory of an operation between its parallel loops; grows, is freed with the rest.
  float* scratch(size_t floats) {
    if (floats > scratch_floats_) {
      scratch_ = static_cast<float*>(alloc(floats * sizeof(float)));
      scratch_floats_ = floats;
    }
    return scratch_;
  }

  void apply(const Linear& l, Rows x, int m, float* y, bool add) {
    const int groups = l.cols / arith::kGroup;
    for (const Part& p : l.parts) {
      float* to = y + p.row0;
      if (p.q4) {
        pool_.run_ranges(
            (p.rows + kTileRows - 1) / kTileRows, tile_bytes(groups), [&](int begin, int end) {
              isa_.project_q4(static_cast<const uint8_t*>(p.data), groups, begin, end, p.rows,
                              static_cast<const ActGroup*>(x.act), m, to, l.rows, add);
            });
      } else {
        pool_.run_ranges(p.rows, static_cast<size_t>(l.cols) * sizeof(float),
                         [&](int begin, int end) {
                           isa_.project_float(static_cast<const float*>(p.data), l.cols, begin, end,
                                              x.x, l.cols, m, to, l.rows, add);
                         });
      }
    }
  }

  void quantize(Rows r, int cols, int m) {
    pool_.run_ranges(cols / arith::kGroup, 8 * static_cast<size_t>(m) * arith::kGroup,
                     [&](int begin, int end) {
                       for (int i = 0; i < m; ++i)
                         isa_.quantize(r.x + static_cast<size_t>(i) * cols, begin, end, i, m,
                                       static_cast<ActGroup*>(r.act));
                     });
  }

  bool finite(const float* x, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t magnitude = arith::as_bits(x[i]) & 0x7fffffffu;
      most = magnitude > most ? magnitude : most;
    }
    return most < 0x7f800000u;
  }

  // Stacked rows into the tiles of isa.h.
  void* upload_q4(const std::vector<Tensor>& stacked, int rows) {
    const int cols = static_cast<int>(stacked[0].cols), groups = cols / arith::kGroup,
              tiles = (rows + kTileRows - 1) / kTileRows;
    uint8_t* p = static_cast<uint8_t*>(alloc(tiles * tile_bytes(groups)));
    struct Source {
      const vcuda_tensor* t;
      size_t row;
    };
    std::vector<Source> sources;  // per row of the stack
    for (const Tensor& t : stacked)
      for (int64_t r = 0; r < t.rows; ++r) sources.push_back({t.t, static_cast<size_t>(r)});
    pool_.run_ranges(tiles, tile_bytes(groups), [&](int begin, int end) {
      for (int t = begin; t < end; ++t) {
        uint8_t* w = p + t * tile_bytes(groups);
        uint8_t* scales = w + static_cast<size_t>(groups) * 256;
        for (int lane = 0; lane < arith::kQ4Lanes; ++lane)
          for (int g = lane; g < groups; g += arith::kQ4Lanes, w += 256, scales += 2 * kTileRows)
            for (int r = 0; r < kTileRows; ++r)
              pack_group(sources, static_cast<size_t>(t) * kTileRows + r, g, groups, r, w, scales);
      }
    });
    return p;
  }

  template <class Sources>
  static void pack_group(const Sources& sources, size_t row, int g, int groups, int r, uint8_t* w,
                         uint8_t* scales) {
    uint64_t nibbles[2] = {0x8888888888888888u, 0x8888888888888888u};  // weight 0 in the padding
    uint16_t scale = 0;
    if (row < sources.size()) {
      const size_t group = sources[row].row * groups + g;
      nibbles[0] = tensor_nibbles(*sources[row].t, 2 * group);
      nibbles[1] = tensor_nibbles(*sources[row].t, 2 * group + 1);
      scale = tensor_scale(*sources[row].t, group);
    }
    for (int v = 0; v < 4; ++v) {  // inputs 8v .. 8v+7
      const uint32_t eight = static_cast<uint32_t>(nibbles[v / 2] >> (32 * (v % 2)));
      for (int b = 0; b < 4; ++b)
        w[64 * v + 4 * r + b] =
            static_cast<uint8_t>(((eight >> (4 * b)) & 15u) | ((eight >> (16 + 4 * b)) & 15u) << 4);
    }
    std::memcpy(scales + 2 * r, &scale, 2);
  }

  void* upload_float(const std::vector<Tensor>& stacked, int rows) {
    const size_t cols = static_cast<size_t>(stacked[0].cols);
    float* p = static_cast<float*>(alloc(rows * cols * sizeof(float)));
    float* to = p;
    for (const Tensor& t : stacked) {
      pool_.run_ranges(static_cast<int>(t.rows), cols * sizeof(float), [&](int begin, int end) {
        for (size_t i = begin * cols; i < end * cols; ++i) to[i] = tensor_float(*t.t, i);
      });
      to += static_cast<size_t>(t.rows) * cols;
    }
    return p;
  }

  const Isa& isa_;
  Pool pool_;
  std::vector<void*> owned_;
  float* scratch_ = nullptr;
  size_t scratch_floats_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const vcuda_dev_options& options) {
  int threads = options.threads;
  if (threads < 0 || threads > 1024)
    fail(VCUDA_E_ARGUMENT, "threads is %d, must be 0 to 1024", threads);
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  return std::make_unique<CpuBackend>(threads < 1 ? 1 : threads);
}

std::string backend_info() {
  return "\"backend\": \"cpu\", \"architectures\": [\"portable\", \"avx2\", \"avx512\"]";
}

}  // namespace vcuda
