// Sweep of the compiled cuts of the projections' rows.
#pragma once

#include <string>
#include <vector>

namespace bench {

// Every cut at every shape: bits, then times. table: "", or where the fastest cuts are written.
// Returns 1 when a cut differs.
int sweep_cuts(const std::vector<int>& ms, const std::string& table);

}  // namespace bench
