#include "model/model.h"

namespace vcuda {

void forward(Backend& b, const Config& c, const Weights& w, const Workspace& work,
             const std::vector<float*>& gdn_in, const std::vector<void*>& kv, const StepInput& in,
             Taps* taps) {
  const int m = in.m;
  auto tap = [&](size_t layer, vcuda_tap_kind kind, const float* values, int columns) {
    if (!taps) return;
    std::vector<float>& to = taps->values[layer * Taps::kKinds + kind];
    to.resize(static_cast<size_t>(m) * columns);
    b.read(to.data(), values, to.size() * sizeof(float));
  };

  // y = W norm(x), with the norm in work.h where a tap asks for it.
  auto norm_project = [&](size_t layer, vcuda_tap_kind kind, const float* norm, const Linear& l,
                          float* y) {
    if (!taps) return b.norm_project(work.x, norm, c.rms_eps, l, m, work.h, y);
    b.rms_norm(work.x, norm, c.hidden, c.rms_eps, m, work.h);
    tap(layer, kind, work.h.x, c.hidden);
    b.project(l, work.h, m, y);
  };

  b.begin(in);
  b.embed(w, c, in, work.x);
  for (size_t i = 0; i < w.layers.size(); ++i) {
    const Layer& l = w.layers[i];
    // x += mixer(norm(x))
    if (l.kind == VCUDA_LAYER_GDN) {
      float* projected = gdn_in[l.index];
      norm_project(i, VCUDA_TAP_INPUT_NORM, l.input_norm, l.gdn.in, projected);
      tap(i, VCUDA_TAP_IN_PROJ, projected, c.gdn_rows());
      b.gdn(l, c, in, projected, work.mixed);
      tap(i, VCUDA_TAP_MIXER, work.mixed.x, c.value_dim());
      b.project_add(l.gdn.out, work.mixed, m, work.x);
    } else {
      norm_project(i, VCUDA_TAP_INPUT_NORM, l.input_norm, l.attention.in, work.in);
      tap(i, VCUDA_TAP_IN_PROJ, work.in, c.attention_rows());
      b.attention(l, c, w, in, kv[l.index], work.in, work.mixed);
      tap(i, VCUDA_TAP_MIXER, work.mixed.x, c.attention_dim());
      b.project_add(l.attention.out, work.mixed, m, work.x);
    }
    tap(i, VCUDA_TAP_MIXER_RESIDUAL, work.x, c.hidden);

    // x += down(silu(gate) * up), gate and up of norm(x)
    if (taps) {
      norm_project(i, VCUDA_TAP_POST_NORM, l.post_norm, l.gate_up, work.gate_up);
      tap(i, VCUDA_TAP_GATE_UP, work.gate_up, 2 * c.intermediate);
      b.swiglu(work.gate_up, c.intermediate, m, work.swiglu);
      tap(i, VCUDA_TAP_SWIGLU, work.swiglu.x, c.intermediate);
    } else {
      b.norm_swiglu(work.x, l.post_norm, c.rms_eps, l.gate_up, m, work.h, work.gate_up,
                    work.swiglu);
    }
    b.project_add(l.down, work.swiglu, m, work.x);
    tap(i, VCUDA_TAP_RESIDUAL, work.x, c.hidden);
  }
  b.rms_norm(work.x, w.final_norm, c.hidden, c.rms_eps, m, work.h);
  b.project(w.head, work.h, m, work.logits);
}

}  // namespace vcuda
