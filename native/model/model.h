// One model on one device: weights, state, and the calls of the ABI. Every check that can refuse a
// call comes before the first change; a step writes beside the state and is taken over only when
// its results are finite.
#pragma once

#include <memory>

#include "model/backend.h"

namespace vcuda {

// Host copies of what each operation of the last step left.
struct Taps {
  static constexpr int kKinds = VCUDA_TAP_RESIDUAL + 1;
  int m = 0;                               // rows of the last step; 0: none
  std::vector<std::vector<float>> values;  // [layers * kKinds], each [m, columns]
};

class Model {
 public:
  Model(Backend&,
        const vcuda_model_desc&);  // its memory is the backend's: free_all() after the model's end
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  void reset();
  void step(const int32_t* tokens, int m, float* h_out, float* logits);  // m = 1: the single step
  void step_m(const int32_t* tokens, int m, float* h_out, float* logits);
  void mark();
  void rollback();
  void rollback_to(int n);
  void poison(uint32_t word);
  // For tools that time long contexts: the cursor moves over rows of the attention caches that hold
  // this word, as if that many tokens had been read.
  void skip_to(int position, uint32_t word);
  void taps(bool on);
  uint64_t tap_size(int layer,
                    int kind) const;  // bytes; VCUDA_E_ARGUMENT when there is no such tap
  void tap_read(int layer, int kind, void* buffer) const;
  uint64_t state_size(int layer,
                      int kind) const;  // bytes; VCUDA_E_ARGUMENT when the layer has no such part
  void state_read(int layer, int kind, void* buffer) const;
  void info(vcuda_model_info&) const;

 private:
  template <class T = float>
  T* alloc(size_t count);
  void make_workspace();
  StateSlot make_slot();
  int free_slot() const;  // neither now_ nor marked_
  void require_rows_enabled(const char* what) const;

  Backend& backend_;
  Config config_;
  int context_;
  int mmax_;  // 0: M rows are not enabled
  Weights weights_;
  Workspace work_;
  struct Memory {
    void* p;
    size_t bytes;
  };
  std::vector<Memory> work_memory_;  // what poison fills
  std::vector<float*> shared_in_;    // work_.in for each GDN layer
  std::vector<void*> kv_;            // per attention layer
  // Slot now_ is the state; a step writes the first slot that is neither now_ nor marked_, so that
  // mark and rollback copy nothing. The third slot exists from the first mark on. Rows of the
  // attention caches past position_ are never read.
  std::vector<StateSlot> slots_;
  int now_ = 0, position_ = 0;
  int marked_ = -1, marked_position_ = 0;  // -1: no mark
  // For rollback_to: inputs of the recurrence of the M-row step right after the mark, [GDN
  // layers][mmax, gdn_rows]; they are kept by letting the projections write there. kept_m_: that
  // step's M; 0: none yet; -1: something else happened since.
  std::vector<float*> kept_;
  int kept_m_ = 0;
  std::unique_ptr<Taps> taps_;  // null: off
  uint64_t state_bytes_ = 0;
};

// The forward pass; leaves the final norm's output in work.h and the logits in work.logits. gdn_in:
// where each GDN layer's first projection goes. taps: null, or filled.
void forward(Backend&, const Config&, const Weights&, const Workspace&,
             const std::vector<float*>& gdn_in, const std::vector<void*>& kv, const StepInput&,
             Taps* taps);

}  // namespace vcuda
