#include "model/model.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "model/error.h"
#include "model/weights.h"

namespace vcuda {
namespace {

constexpr const char* kGate = "VLLM_CUDA_Q35_MM";

// Largest M, from the environment; 0 when the variable is unset.
int read_mmax() {
  const char* text = std::getenv(kGate);
  if (!text || !*text) return 0;
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text, &end, 10);
  if (errno || *end || value < 2 || value > 64)
    fail(VCUDA_E_ARGUMENT, "%s is '%s', must be a number from 2 to 64", kGate, text);
  return static_cast<int>(value);
}

const vcuda_config& checked_config(const vcuda_model_desc& d) {
  if (d.struct_size < sizeof d)
    fail(VCUDA_E_ARGUMENT, "vcuda_model_desc: struct_size %u is too small", d.struct_size);
  if (!d.config || (!d.tensors && d.tensor_count))
    fail(VCUDA_E_ARGUMENT, "vcuda_model_desc: config or tensors is NULL");
  if (d.config->struct_size < sizeof *d.config)
    fail(VCUDA_E_ARGUMENT, "vcuda_config: struct_size %u is too small", d.config->struct_size);
  if (d.context < 1 || d.context > 1 << 22)
    fail(VCUDA_E_ARGUMENT, "context is %d, must be 1 to 4194304", d.context);
  return *d.config;
}

}  // namespace

Model::Model(Backend& backend, const vcuda_model_desc& desc)
    : backend_(backend),
      config_(make_config(checked_config(desc))),
      context_(desc.context),
      mmax_(read_mmax()) {
  weights_ = load_weights(backend_, config_, desc);

  make_workspace();
  const Config& c = config_;
  for (int i = 0; i < c.count(VCUDA_LAYER_ATTENTION); ++i) {
    const size_t bytes = backend_.kv_bytes(c, context_);
    kv_.push_back(alloc<char>(bytes));
    backend_.clear_cache(kv_.back(), bytes);
    state_bytes_ += bytes;
  }
  slots_.push_back(make_slot());
  slots_.push_back(make_slot());
  reset();
}

void Model::make_workspace() {
  const Config& c = config_;
  const int rows = std::max(1, mmax_);
  auto floats = [&](int columns) {
    const size_t bytes = static_cast<size_t>(rows) * columns * sizeof(float);
    float* p = static_cast<float*>(backend_.alloc(bytes));
    work_memory_.push_back({p, bytes});
    return p;
  };
  auto activations = [&](int columns) {
    const size_t bytes = backend_.act_bytes(columns, rows);
    Rows r{floats(columns), backend_.alloc(bytes)};
    backend_.zero(r.act, bytes);  // a backend may copy gaps of its layout along
    work_memory_.push_back({r.act, bytes});
    return r;
  };
  work_.x = floats(c.hidden);
  work_.h = activations(c.hidden);
  work_.in = floats(std::max(c.gdn_rows(), c.attention_rows()));
  work_.mixed = activations(std::max(c.value_dim(), c.attention_dim()));
  work_.gate_up = floats(2 * c.intermediate);
  work_.swiglu = activations(c.intermediate);
  work_.logits = floats(c.vocab);
  shared_in_.assign(static_cast<size_t>(c.count(VCUDA_LAYER_GDN)), work_.in);
}

template <class T>
T* Model::alloc(size_t count) {
  return static_cast<T*>(backend_.alloc(count * sizeof(T)));
}

StateSlot Model::make_slot() {
  const size_t n = static_cast<size_t>(config_.count(VCUDA_LAYER_GDN));
  StateSlot slot;
  slot.s = alloc(n * config_.s_size());
  slot.conv = alloc(n * config_.conv_size());
  state_bytes_ += n * (config_.s_size() + config_.conv_size()) * sizeof(float);
  return slot;
}

void Model::reset() {
  const size_t n = static_cast<size_t>(config_.count(VCUDA_LAYER_GDN));
  now_ = 0;
  marked_ = -1;
  backend_.zero(slots_[0].s, n * config_.s_size() * sizeof(float));
  backend_.zero(slots_[0].conv, n * config_.conv_size() * sizeof(float));
  position_ = 0;
}

void Model::step(const int32_t* tokens, int m, float* h_out, float* logits) {
  if (!tokens || !h_out || !logits) fail(VCUDA_E_ARGUMENT, "step: a pointer is NULL");
  for (int i = 0; i < m; ++i)
    if (tokens[i] < 0 || tokens[i] >= config_.vocab)
      fail(VCUDA_E_ARGUMENT, "token %d is %d, must be 0 to %d", i, tokens[i], config_.vocab - 1);
  if (position_ > context_ - m)
    fail(VCUDA_E_CONTEXT_FULL, "context full: %d of %d positions used, %d more asked for",
         position_, context_, m);

  const int to = free_slot();
  const bool keep = marked_ >= 0 && kept_m_ == 0 && m > 1;  // the M-row step right after a mark
  const StepInput in{tokens, m, position_, context_, &slots_[now_], &slots_[to], taps_ ? -1 : keep};
  if (taps_) taps_->m = 0;
  bool finite = false;
  try {
    forward(backend_, config_, weights_, work_, keep ? kept_ : shared_in_, kv_, in, taps_.get());
    finite = backend_.end(config_, m, work_.h.x, work_.logits, h_out, logits);
  } catch (...) {
    backend_.cancel();
    throw;
  }
  if (!finite)
    fail(VCUDA_E_NONFINITE, "a NaN or an infinity in the result at position %d; the step is undone",
         position_);
  now_ = to;
  position_ += m;
  if (marked_ >= 0) kept_m_ = keep ? m : -1;
  if (taps_) taps_->m = m;
}

int Model::free_slot() const {
  int slot = 0;
  while (slot == now_ || slot == marked_) ++slot;  // a mark implies three slots
  return slot;
}

void Model::require_rows_enabled(const char* what) const {
  if (mmax_ == 0)
    fail(VCUDA_E_UNSUPPORTED,
         "%s: M rows are not enabled; set %s to the largest M before the model is loaded", what,
         kGate);
}

void Model::step_m(const int32_t* tokens, int m, float* h_out, float* logits) {
  require_rows_enabled("step_m");
  if (m < 2 || m > mmax_)
    fail(VCUDA_E_ARGUMENT, "step_m: M is %d, must be 2 to %d (%s)", m, mmax_, kGate);
  if (!weights_.float_projection.empty())
    fail(VCUDA_E_UNSUPPORTED, "step_m: %s is a float projection, which cannot be batched",
         weights_.float_projection.c_str());
  step(tokens, m, h_out, logits);
}

void Model::mark() {
  require_rows_enabled("mark");
  if (slots_.size() < 3) slots_.push_back(make_slot());
  while (kept_.size() < shared_in_.size())
    kept_.push_back(alloc(static_cast<size_t>(mmax_) * config_.gdn_rows()));
  marked_ = now_;
  marked_position_ = position_;
  kept_m_ = 0;
}

void Model::rollback() {
  require_rows_enabled("rollback");
  if (marked_ < 0) fail(VCUDA_E_NO_MARK, "rollback: there is no mark, or it was used");
  now_ = marked_;
  position_ = marked_position_;
  marked_ = -1;
}

void Model::rollback_to(int n) {
  require_rows_enabled("rollback_to");
  if (marked_ < 0) fail(VCUDA_E_NO_MARK, "rollback_to: there is no mark, or it was used");
  if (kept_m_ <= 0)
    fail(VCUDA_E_NO_MARK, "rollback_to: one M-row step must be the only step since the mark");
  if (n < 0 || n > kept_m_)
    fail(VCUDA_E_ARGUMENT, "rollback_to: n is %d, must be 0 to %d", n, kept_m_);
  if (n == 0) return rollback();
  if (n < kept_m_) {  // replay the recurrence alone; keys and values past the cursor are forgotten
                      // by moving it
    const int to = free_slot();
    const StepInput in{nullptr, n, marked_position_, context_, &slots_[marked_], &slots_[to], -1};
    try {
      backend_.begin(in);
      for (const Layer& l : weights_.layers)
        if (l.kind == VCUDA_LAYER_GDN) backend_.gdn(l, config_, in, kept_[l.index], work_.mixed);
    } catch (...) {
      backend_.cancel();
      throw;
    }
    now_ = to;
    position_ = marked_position_ + n;
  }
  marked_ = -1;
}

void Model::poison(uint32_t word) {
  const size_t layers = static_cast<size_t>(config_.count(VCUDA_LAYER_GDN));
  for (const Memory& memory : work_memory_) backend_.fill(memory.p, memory.bytes, word);
  backend_.fill_scratch(word);
  for (void* kv : kv_) backend_.fill_kv(config_, kv, context_, position_, word);
  for (int i = 0; i < static_cast<int>(slots_.size()); ++i) {
    if (i == now_ || i == marked_) continue;
    backend_.fill(slots_[i].s, layers * config_.s_size() * sizeof(float), word);
    backend_.fill(slots_[i].conv, layers * config_.conv_size() * sizeof(float), word);
  }
  if (marked_ < 0 || kept_m_ <= 0)
    for (float* p : kept_)
      backend_.fill(p, static_cast<size_t>(mmax_) * config_.gdn_rows() * sizeof(float), word);
}

void Model::skip_to(int position, uint32_t word) {
  if (position < position_ || position > context_)
    fail(VCUDA_E_ARGUMENT, "skip_to: position is %d, must be %d to %d", position, position_,
         context_);
  for (void* kv : kv_) backend_.fill_kv(config_, kv, context_, position_, word);
  position_ = position;
  marked_ = -1;
}

void Model::taps(bool on) {
  if (!on) return taps_.reset();
  taps_ = std::make_unique<Taps>();
  taps_->values.resize(weights_.layers.size() * Taps::kKinds);
}

uint64_t Model::tap_size(int layer, int kind) const {
  if (!taps_ || taps_->m == 0) fail(VCUDA_E_ARGUMENT, "taps: they are off, or no step was made");
  if (layer < 0 || layer >= config_.layers || kind < 0 || kind >= Taps::kKinds)
    fail(VCUDA_E_ARGUMENT, "taps: there is no layer %d with a tap of kind %d", layer, kind);
  return taps_->values[static_cast<size_t>(layer) * Taps::kKinds + kind].size() * sizeof(float);
}

void Model::tap_read(int layer, int kind, void* buffer) const {
  const std::vector<float>& from = taps_->values[static_cast<size_t>(layer) * Taps::kKinds + kind];
  std::memcpy(buffer, from.data(), from.size() * sizeof(float));
}

void Model::info(vcuda_model_info& out) const {
  out.hidden = config_.hidden;
  out.vocab = config_.vocab;
  out.layers = config_.layers;
  out.context = context_;
  out.position = position_;
  out.mmax = mmax_;
  out.marked = marked_ >= 0;
  out.weight_bytes = weights_.step_bytes;
  out.state_bytes = state_bytes_;
}

uint64_t Model::state_size(int layer, int kind) const {
  if (layer < 0 || layer >= config_.layers)
    fail(VCUDA_E_ARGUMENT, "layer is %d, must be 0 to %d", layer, config_.layers - 1);
  const bool gdn = config_.kinds[layer] == VCUDA_LAYER_GDN;
  if (gdn && kind == VCUDA_STATE_S) return config_.s_size() * sizeof(float);
  if (gdn && kind == VCUDA_STATE_CONV) return config_.conv_size() * sizeof(float);
  if (!gdn && (kind == VCUDA_STATE_KEYS || kind == VCUDA_STATE_VALUES))
    return static_cast<uint64_t>(config_.kv_rows()) * position_ * sizeof(float);
  fail(VCUDA_E_ARGUMENT, "layer %d is %s: it has no state of kind %d", layer,
       gdn ? "GDN" : "attention", kind);
}

void Model::state_read(int layer, int kind, void* buffer) const {
  float* out = static_cast<float*>(buffer);
  const int index = weights_.layers[layer].index;
  const StateSlot& now = slots_[now_];
  if (kind == VCUDA_STATE_S) return backend_.read_s(config_, now.s + index * config_.s_size(), out);
  if (kind == VCUDA_STATE_CONV)
    return backend_.read_conv(config_, now.conv + index * config_.conv_size(), out);
  backend_.read_kv(config_, kv_[index], context_, position_, kind == VCUDA_STATE_KEYS, out);
}

}  // namespace vcuda
