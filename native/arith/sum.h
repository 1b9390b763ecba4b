// The adjacency tree that ends every sum of the bits contract.
#pragma once

#include "arith/hd.h"

namespace vcuda::arith {

// lanes[0..L) -> ((0+1)+(2+3))+...; L is a power of two. Overwrites lanes. A warp's xor-shuffle
// over 1, 2, 4, ... gives the same bits, since float addition is commutative.
template <int L>
ARITH_HD float tree_sum(float* lanes) {
  static_assert(L > 0 && (L & (L - 1)) == 0, "lane counts are powers of two");
  for (int n = L / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) lanes[i] = lanes[2 * i] + lanes[2 * i + 1];
  return lanes[0];
}

}  // namespace vcuda::arith
