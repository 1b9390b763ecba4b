// The bits contract, version 1: every constant that decides a bit of a result. One source for all
// backends.
//
// A change of anything here, or of the order of operations that the comments of arith/ and of
// model/backend.h state, is a new version with new golden digests. Floating point is IEEE-754
// float32, round to nearest even, denormals kept; a fused multiply-add happens exactly where the
// text says fma.
#pragma once

namespace vcuda::arith {

constexpr int kBitsVersion = 1;

// A sum with L lanes: lane l folds its elements l, l+L, l+2L, ... in ascending order starting from
// +0.0 (fma for products,
// + otherwise); then the lanes are added by the adjacency tree ((0+1)+(2+3))+... An absent element
// leaves its lane alone, an absent lane is +0.0 and takes part in the tree.
constexpr int kQ4Lanes = 16;        // 4-bit projections: over groups of 32 inputs
constexpr int kFloatLanes = 32;     // float32 projections: over inputs
constexpr int kNormLanes = 256;     // RMSNorm of the hidden state
constexpr int kHeadNormLanes = 32;  // norms of one head: q_norm, k_norm, l2, the gated norm
constexpr int kGdnLanes = 8;        // the delta rule's two sums over dk
constexpr int kScoreLanes = 4;      // q . k over the head's dimensions
constexpr int kExpLanes = 32;       // sum of a chunk's exponentials over its keys
// The weighted sum of a chunk's values and the convolution's taps have one lane: plain ascending
// fma from +0.0.

// Attention: keys in chunks at absolute positions 0, 64, 128, ...; chunks merge in ascending order
// inside a span of 16, spans merge in ascending order. The first of each is taken as it is. So any
// split over blocks or threads has the same bits.
constexpr int kChunk = 64;
constexpr int kSpanChunks = 16;

// 4-bit projections: 22-bit block fixed point activations (quant.h).
constexpr int kGroup = 32;
constexpr int kDigits = 3;
constexpr int kMinExponent = -100, kMaxExponent = 108;

constexpr float kL2Eps =
    1e-6f;  // inside the root of the delta rule's l2 norms; not the model's rms_eps

}  // namespace vcuda::arith
