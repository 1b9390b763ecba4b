"""Mutants of the arithmetic: the order of sums, roundings, functions, one instruction set."""

# ruff: noqa: E501 (lines of the source as they are)
from __future__ import annotations

from pyharness.tests.faults.mutant import FAILED, H_OUT, LOGITS, STATE, Mutant

KERNELS, PORTABLE, CPU = "cpu/kernels.inc", "cpu/isa_portable.cpp", "cpu/backend.cpp"
_TERM = (
    "lane_sum = fma32(static_cast<float>(static_cast<int32_t>(c[r])),\n"
    "                           half_to_float(half) * a.scale, lane_sum);"
)

# fmt: off
MUTANTS = (
    Mutant(
        "sum-order-m5", "more than four rows add two lanes in another order",
        PORTABLE,
        "out[i * kTileRows + r] = tree_sum<kQ4Lanes>(lanes[i][r]);",
        "{\n      float* l = lanes[i][r];\n"
        "      if (M > 4) { const float t = l[1]; l[1] = l[2]; l[2] = t; }\n"
        "      out[i * kTileRows + r] = tree_sum<kQ4Lanes>(l);\n    }",
        "mt5", H_OUT,
    ),
    Mutant(
        "q4-fma-split", "the fma of a 4-bit projection is rounded twice",
        PORTABLE,
        _TERM,
        "lane_sum = static_cast<float>(static_cast<int32_t>(c[r])) * (half_to_float(half) * a.scale) + lane_sum;",
        "m1", H_OUT,
    ),
    Mutant(
        "scale-rounded", "the product of the two scales is rounded once more",
        PORTABLE,
        "half_to_float(half) * a.scale, lane_sum);",
        "bfloat_to_float(float_to_bfloat(half_to_float(half) * a.scale)), lane_sum);",
        "m1", H_OUT,
    ),
    Mutant(
        "decay-after-read", "the memory is read before it decays",
        KERNELS,
        "lanes[l] = fma(mul(decays, load(s_from + static_cast<size_t>(i + l) * dv + n)),",
        "lanes[l] = fma(load(s_from + static_cast<size_t>(i + l) * dv + n),",
        "m1", STATE, family="gdn",
    ),
    Mutant(
        "delta-fma-split", "the update of S is rounded twice",
        KERNELS,
        "const F s = fma(splat(k[i + l]), d, mul(decays, load(s_from + at)));",
        "const F s = add(mul(splat(k[i + l]), d), mul(decays, load(s_from + at)));",
        "m1", STATE, family="gdn",
    ),
    Mutant(
        "chunk-order", "chunks of keys merge in the opposite order",
        KERNELS,
        "if (!first) merge(span, chunk, h.d);",
        "if (!first) { merge(chunk, span, h.d); span = chunk; }",
        "m1", H_OUT, family="attn",
    ),
    Mutant(
        "lone-key", "a key that is alone in its chunk is not merged",
        KERNELS,
        "if (!first) merge(span, chunk, h.d);",
        "if (!first && count > 1) merge(span, chunk, h.d);",
        "m1", H_OUT, family="attn",
    ),
    Mutant(
        "span-order", "spans of chunks merge in the opposite order",
        KERNELS,
        "else merge(total, span, h.d);",
        "else { merge(span, total, h.d); total = span; }",
        "m1", H_OUT, family="attn", prefix=1023,
    ),
    Mutant(
        "exp-sum-lanes", "the exponentials of a chunk are added in 16 lanes",
        KERNELS,
        "lanes[t % kExpLanes] += score[t];",
        "lanes[t % (kExpLanes / 2)] += score[t];",
        "m1", H_OUT, family="attn",
    ),
    Mutant(
        "tap-order", "the taps of the convolution are added from the newest to the oldest",
        KERNELS,
        "for (int j = 0; j < taps; ++j) sum = fma(",
        "for (int j = taps - 1; j >= 0; --j) sum = fma(",
        "m1", STATE, family="gdn",
    ),
    Mutant(
        "l2-eps", "the norm of queries and keys has no epsilon",
        KERNELS,
        "dot_lanes<kHeadNormLanes>(x, x, n) + kL2Eps",
        "dot_lanes<kHeadNormLanes>(x, x, n)",
        "m1", STATE, family="gdn",
    ),
    Mutant(
        "norm-lanes", "the norm of the hidden state sums in 128 lanes",
        KERNELS,
        "norm<kNormLanes>(x, w, n, eps, y);",
        "norm<kNormLanes / 2>(x, w, n, eps, y);",
        "m1", H_OUT,
    ),
    Mutant(
        "float-lanes", "a float projection sums in 16 lanes",
        KERNELS,
        "dot_lanes<kFloatLanes>(",
        "dot_lanes<kFloatLanes / 2>(",
        "m1", STATE, family="gdn",
    ),
    Mutant(
        "silu-for-sigmoid", "attention's gate is multiplied by itself",
        KERNELS,
        "total.o[n] / total.s * sigmoid32(gate[n]);",
        "total.o[n] / total.s * silu32(gate[n]);",
        "m1", LOGITS, family="attn",
    ),
    Mutant(
        "score-scale", "scores are scaled before they are added",
        KERNELS,
        "store(score + t, mul(add(add(lanes[0], lanes[1]), add(lanes[2], lanes[3])), splat(scale)));",
        "for (F& lane : lanes) lane = mul(lane, splat(scale * 1.0000001f));\n"
        "    store(score + t, add(add(lanes[0], lanes[1]), add(lanes[2], lanes[3])));",
        "m1", H_OUT, family="attn",
    ),
    Mutant(
        "exp-coefficient", "a coefficient of exp is one bit off",
        "arith/exp.h",
        "q = fma32(r, q, 0x1.fffffcp-2f);",
        "q = fma32(r, q, 0x1.fffffep-2f);",
        "m1", H_OUT,
    ),
    Mutant(
        "log-coefficient", "a coefficient of log1p is one bit off",
        "arith/log1p.h",
        "0x1.555556p-2f",
        "0x1.555554p-2f",
        "m1", STATE, family="gdn",
    ),
    Mutant(
        "rotary-float", "the angles of the rotary embedding are rounded to float32",
        CPU,
        "arith::sincos64(static_cast<double>(in.position + i) * static_cast<double>(w.inv_freq[j]),",
        "arith::sincos64(static_cast<float>(in.position + i) * w.inv_freq[j],",
        "m1", STATE, family="attn",
    ),
    Mutant(
        "exponent", "activations have one bit less",
        "arith/quant.h",
        "static_cast<int>(max_magnitude_bits >> 23) - 127;",
        "static_cast<int>(max_magnitude_bits >> 23) - 126;",
        "m1", H_OUT,
    ),
    Mutant(
        "truncates", "activations are cut off in place of rounded",
        "arith/quant.h",
        "as_bits(x * factor + 12582912.0f)",
        "as_bits(static_cast<float>(static_cast<int32_t>(x * factor)) + 12582912.0f)",
        "m1", H_OUT,
    ),
    Mutant(
        "denormals", "a step turns on flush-to-zero for its whole process",
        CPU,
        "void begin(const StepInput&) override {}",
        "void begin(const StepInput&) override { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); }",
        "m1", "flushes denormal numbers to zero", FAILED,
    ),
    Mutant(
        "rounds-down", "a step turns on rounding towards minus infinity",
        CPU,
        "void begin(const StepInput&) override {}",
        "void begin(const StepInput&) override { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x2000); }",
        "m1", "no longer rounds to nearest even", FAILED,
    ),
    Mutant(
        "avx512-m", "AVX-512: more than one row takes the scale of its first row",
        "cpu/isa_avx512.cpp",
        "mul(weight_scale, splat(a->scale))",
        "mul(weight_scale, splat((a - i)->scale))",
        "mt2", H_OUT, isa="avx512",
    ),
    Mutant(
        "avx2-fma", "AVX2: a fused multiply-add is rounded twice",
        "cpu/isa_avx2.cpp",
        "return _mm256_fmadd_ps(a, b, c);",
        "return _mm256_add_ps(_mm256_mul_ps(a, b), c);",
        "m1", H_OUT, isa="avx2",
    ),
)
# fmt: on
