#include "model/model.h"

namespace vcuda {

void forward(Backend& b, const Config& c, const Weights& w, const Workspace& work,
             const std::vector<void*>& kv, const StepInput& in) {
  const int m = in.m;
  b.begin(in);
  b.embed(w, c, in, work.x);
  for (const Layer& l : w.layers) {
    // x += mixer(norm(x))
    b.rms_norm(work.x, l.input_norm, c.hidden, c.rms_eps, m, work.h);
    if (l.kind == VCUDA_LAYER_GDN) {
      b.project(l.gdn.in, work.h, m, work.in);
      b.gdn(l, c, in, work.in, work.mixed);
      b.project_add(l.gdn.out, work.mixed, m, work.x);
    } else {
      b.project(l.attention.in, work.h, m, work.in);
      b.attention(l, c, w, in, kv[l.index], work.in, work.mixed);
      b.project_add(l.attention.out, work.mixed, m, work.x);
    }
    // x += down(silu(gate) * up), gate and up of norm(x)
    b.rms_norm(work.x, l.post_norm, c.hidden, c.rms_eps, m, work.h);
    b.project(l.gate_up, work.h, m, work.gate_up);
    b.swiglu(work.gate_up, c.intermediate, m, work.swiglu);
    b.project_add(l.down, work.swiglu, m, work.x);
  }
  b.rms_norm(work.x, w.final_norm, c.hidden, c.rms_eps, m, work.h);
  b.project(w.head, work.h, m, work.logits);
}

}  // namespace vcuda
