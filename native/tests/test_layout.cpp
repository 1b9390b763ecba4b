// Where gates and ups lie (kernels/q4_layout.cuh): every row of a matrix in one place and every
// unit complete, for all numbers of clusters and of tiles in a slab. One line a failure; exit 1
// then.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "kernels/q4_layout.cuh"

using namespace vcuda;
using namespace vcuda::gpu;

namespace {

struct Place {
  int count = 0, cluster = 0, at = 0, r = 0;  // at: tile of the cluster's slabs; r: row of the tile
};

// nullptr, or what is wrong.
const char* wrong(int units, int tiles, int clusters) {
  const int rows = units * 2 * arith::kGroup;
  Q4Shape q{rows, 16, 2, tiles, 0};
  q.gated = std::min(clusters, q.slabs());
  std::vector<Place> places(static_cast<size_t>(rows));
  for (int slab = 0; slab < q.slabs(); ++slab)
    for (int tile = 0; tile < tiles; ++tile)
      for (int r = 0; r < 16; ++r) {
        const int row = q.row(slab, tile, r);
        if (row < 0) return "a row below 0";
        if (row >= rows) continue;
        Place& p = places[static_cast<size_t>(row)];
        ++p.count, p.cluster = slab % q.gated, p.at = slab / q.gated * tiles + tile, p.r = r;
      }
  for (const Place& p : places)
    if (p.count != 1) return "a row that is not in one place";
  for (int unit = 0; unit < units; ++unit) {
    Place first[4];
    for (int i = 0; i < 2 * arith::kGroup; ++i) {
      const int input = i % arith::kGroup, up = i / arith::kGroup, place = up * 2 + input % 4 / 2;
      const Place& p = places[static_cast<size_t>(up * (rows / 2) + unit * arith::kGroup + input)];
      if (p.r != input / 4 + input % 2 * 8) return "a row of another thread";
      if (p.r == 0) first[place] = p;
      if (p.cluster != first[place].cluster || p.at != first[place].at)
        return "a tile in two places";
    }
    const GatedCluster own = q.gated_cluster(first[0].cluster);
    for (int i = 0; i < 4; ++i)
      if (unit < own.shared
              ? first[i].cluster != first[0].cluster || first[i].at != first[0].at + i ||
                    first[0].at < own.spare || (first[0].at - own.spare) % 4 != 0
              : first[i].at >= std::min(3, tiles))
        return "a unit whose tiles are not together, or a shared one behind the first tiles";
  }
  return nullptr;
}

}  // namespace

int main() {
  int cases = 0, failures = 0;
  for (int tiles : {4, 5, 7, 8, 11, 12})
    for (int clusters = 1; clusters <= 66; ++clusters)
      for (int units : {1, 2, 3, 5, 8, 17, 31, 64, 130, 192, 543, 544, 545}) {
        ++cases;
        if (const char* what = wrong(units, tiles, clusters)) {
          std::printf("%d units, %d tiles, %d clusters: %s\n", units, tiles, clusters, what);
          if (++failures == 20) return 1;
        }
      }
  std::printf("%d layouts\n", cases);
  return failures ? 1 : 0;
}
