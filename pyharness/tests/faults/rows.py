"""Mutants of the M-row step: causality, positions, rows that read other rows, outputs."""

# ruff: noqa: E501 (lines of the source as they are)
from __future__ import annotations

from pyharness.tests.faults.mutant import FAILED, H_OUT, LOGITS, NONDETERMINISTIC, STATE, Mutant

FORWARD, CPU, KERNELS = "model/forward.cpp", "cpu/backend.cpp", "cpu/kernels.inc"
_EMBED = "const size_t first = static_cast<size_t>(in.tokens[i]) * c.hidden;"
_S = "const F s = fma(splat(k[i + l]), d, mul(decays, load(s_from + at)));"

# fmt: off
MUTANTS = (
    Mutant(
        "sees-next-key", "a row sees the key of the row after it",
        CPU,
        "h.visible = in.position + i + 1;",
        "h.visible = in.position + i + 1 + (i + 1 < m);",
        "mt2", H_OUT, family="attn",
    ),
    Mutant(
        "misses-own-key", "a row of an M-row step misses its own key",
        CPU,
        "h.visible = in.position + i + 1;",
        "h.visible = in.position + i + (i == 0);",
        "mt3", H_OUT,
    ),
    Mutant(
        "sees-next-input", "the convolution of a row takes the inputs of the row after it",
        CPU,
        "input(i - history + j, channel);",
        "input(i - history + j + (i + 1 < m), channel);",
        "mt2", H_OUT, family="gdn",
    ),
    Mutant(
        "sees-last-inputs", "the convolution of the last of M rows takes the inputs of the row before",
        CPU,
        "input(i - history + j, channel);",
        "input(i - history + j - (m > 1 && i == m - 1), channel);",
        "mt2", H_OUT, family="gdn",
    ),
    Mutant(
        "conv-window-m3", "M = 3 leaves a window of the convolution that is one row old",
        CPU,
        "input(m - history + j, channel)",
        "input(m - history + j - (m == 3), channel)",
        "mt3", STATE, family="gdn",
    ),
    Mutant(
        "conv-window-libs", "the same, held against the M rows of the old library",
        CPU,
        "input(m - history + j, channel)",
        "input(m - history + j - (m == 3), channel)",
        "libs-mt3", STATE, family="gdn",
    ),
    Mutant(
        "conv-window-of-v", "an M-row step leaves the window of the queries and keys as it was",
        CPU,
        "      for (int j = 0; j < history; ++j)\n        std::memcpy(to + j * ld + channel,",
        "      for (int j = 0; j < history && (m == 1 || is_v); ++j)\n        std::memcpy(to + j * ld + channel,",
        "mt4", STATE, family="gdn",
    ),
    Mutant(
        "position-of-row-3", "rows from the fourth on are rotated for the position of the third",
        CPU,
        "static_cast<double>(in.position + i)",
        "static_cast<double>(in.position + (i < 3 ? i : 2))",
        "mt4", H_OUT, family="attn",
    ),
    Mutant(
        "kv-row", "the last of M rows writes key and value over those of the row before",
        CPU,
        "const int position = in.position + i;",
        "const int position = in.position + i - (m > 1 && i == m - 1);",
        "mt5", H_OUT, NONDETERMINISTIC, family="attn",
    ),
    Mutant(
        "v-row-7", "the eighth row writes its value one row too early",
        CPU,
        "static_cast<size_t>(position) * d, v,",
        "static_cast<size_t>(position - (i == 7)) * d, v,",
        "mt8", H_OUT, NONDETERMINISTIC, family="attn",
    ),
    Mutant(
        "token-of-row-0", "the eighth row reads the token of the seventh",
        CPU,
        _EMBED,
        _EMBED.replace("[i]", "[i < 7 ? i : 6]"),
        "mt8", H_OUT,
    ),
    Mutant(
        "norm-of-row-4", "the sixth row is not normed anew",
        CPU,
        "const size_t row = static_cast<size_t>(i) * n;",
        "const size_t row = static_cast<size_t>(i == 5 ? 4 : i) * n;",
        "mt6", H_OUT, NONDETERMINISTIC,
    ),
    Mutant(
        "gate-of-row-before", "the gate of a row is that of the row before it",
        KERNELS,
        "h.z + i * h.ld_in;",
        "h.z + (i ? i - 1 : 0) * h.ld_in;",
        "mt2", H_OUT, family="gdn",
    ),
    Mutant(
        "beta-of-even-rows", "every second row takes the beta of the row before it",
        KERNELS,
        "sigmoid32(h.b[i * h.ld_in]);",
        "sigmoid32(h.b[i / 2 * 2 * h.ld_in]);",
        "mt7", STATE, family="gdn",
    ),
    Mutant(
        "rows-from-one-state", "every row of an M-row step starts from the state before the step",
        KERNELS,
        "i == 0 ? h.s_from : h.s_to",
        "h.s_from",
        "mt2", STATE, family="gdn",
    ),
    Mutant(
        "heads-swapped", "an M-row step works on the states of neighbouring heads",
        CPU,
        "static_cast<size_t>(c.gdn_v_heads) + j) * dk * dv;",
        "static_cast<size_t>(c.gdn_v_heads) + (m > 1 ? j ^ 1 : j)) * dk * dv;",
        "mt3", STATE, family="gdn",
    ),
    Mutant(
        "activations-reversed", "the MLP's activations of M rows are stored in the opposite order",
        CPU,
        "isa_.quantize(row, begin, end, i, m,",
        "isa_.quantize(row, begin, end, m - 1 - i, m,",
        "mt2", H_OUT,
    ),
    Mutant(
        "no-residual-m8", "eight rows replace the residual stream in place of adding to it",
        CPU,
        "const ActGroup*>(x.act), m, to, l.rows, add);",
        "const ActGroup*>(x.act), m, to, l.rows, add && m < 8);",
        "mt8", H_OUT,
    ),
    Mutant(
        "last-row-mlp", "the MLP of the last of M rows is not computed",
        "model/backend.h",
        "swiglu(gate_up, l.rows / 2, m, out);",
        "swiglu(gate_up, l.rows / 2, m > 1 ? m - 1 : m, out);",
        "mt4", H_OUT,
    ),
    Mutant(
        "last-row-head", "the logits of the last of M rows are not computed",
        FORWARD,
        "b.project(w.head, work.h, m, work.logits);",
        "b.project(w.head, work.h, m > 1 ? m - 1 : m, work.logits);",
        "mt2", LOGITS, NONDETERMINISTIC,
    ),
    Mutant(
        "last-row-norm", "the last of M rows misses the final norm",
        FORWARD,
        "b.rms_norm(work.x, w.final_norm, c.hidden, c.rms_eps, m, work.h);",
        "b.rms_norm(work.x, w.final_norm, c.hidden, c.rms_eps, m > 1 ? m - 1 : m, work.h);",
        "mt3", H_OUT,
    ),
    Mutant(
        "stale-logit", "the last logit is that of the call before",
        CPU,
        "std::memcpy(logits_out, logits, ln * sizeof(float));",
        "std::memcpy(logits_out, logits, ln * sizeof(float));\n"
        "    static float stale = 0.5f;\n    std::swap(stale, logits_out[ln - 1]);",
        "m1", LOGITS,
    ),
    Mutant(
        "unwritten-logit", "the last logit of an M-row step is not written",
        CPU,
        "std::memcpy(logits_out, logits, ln * sizeof(float));",
        "std::memcpy(logits_out, logits, (ln - (m > 1)) * sizeof(float));",
        "mt2", "logits row 1 column 511 was not written", FAILED,
    ),
    Mutant(
        "first-step", "the first step of a process reads the last token of its rows first",
        CPU,
        _EMBED,
        "static int steps = 0;\n"
        "      const int token = steps++ == 0 ? in.tokens[in.m - 1] : in.tokens[i];\n"
        "      const size_t first = static_cast<size_t>(token) * c.hidden;",
        "mt8-fresh", H_OUT, prefix=0,
    ),
    Mutant(
        "scratch-of-row-0", "the norm of the keys reaches the first row only",
        CPU,
        "if (!is_v) isa_.l2_norm(head, width, q_factor, task < k_heads);",
        "if (!is_v && (i == 0 || task < k_heads)) isa_.l2_norm(head, width, q_factor, task < k_heads);",
        "mt5", STATE, family="gdn",
    ),
    Mutant(
        "threads", "more than one thread gives another epsilon",
        CPU,
        "h.eps = c.rms_eps;",
        "h.eps = c.rms_eps * (pool_.threads() > 1 ? 2.0f : 1.0f);",
        "m1-threads", H_OUT, family="gdn", profile="full",
    ),
    Mutant(
        "key-past-cursor", "the value after the last one a row sees is read, with weight 0",
        KERNELS,
        "    for (int t = 0; t < count; ++t) {\n      const F e = splat(score[t]);",
        "    for (int t = 0; t < (count < kChunk ? count + 1 : count); ++t) {\n"
        "      const F e = splat(t < count ? score[t] : 0.0f);",
        "mt4-nan", "VCUDA_E_NONFINITE", FAILED, family="attn",
    ),
    Mutant(
        "kept-workspace", "a large number that a call left in the workspace reaches the next one",
        FORWARD,
        "  b.embed(w, c, in, work.x);\n",
        "  b.embed(w, c, in, work.x);\n  if (work.swiglu.x[0] > 1e30f) work.x[0] += 1.0f;\n",
        "mt4-large", H_OUT,
    ),
    Mutant(
        "piece-border", "the first group of a thread's piece is not quantized anew",
        CPU,
        "isa_.quantize(row, begin, end, i, m, static_cast<ActGroup*>(out.act));",
        "isa_.quantize(row, begin + (begin > 0), end, i, m, static_cast<ActGroup*>(out.act));",
        "mt8", H_OUT,
    ),
    Mutant(
        "slot-read", "the place of the new state is read before it is written, with weight 0",
        KERNELS,
        _S,
        "const F s = fma(zero(), load(h.s_to + at), fma(splat(k[i + l]), d, mul(decays, load(s_from + at))));",
        "mt4-nan", "VCUDA_E_NONFINITE", FAILED, family="gdn",
    ),
    Mutant(
        "partial-chunk", "the cache has no room for all keys of a chunk that the context does not fill",
        CPU,
        "return round_up(static_cast<size_t>(context), arith::kChunk) * c.head_dim;",
        "return static_cast<size_t>(context) * c.head_dim;",
        "m1", H_OUT, family="attn",
    ),
)
# fmt: on
