// The fastest cut of each projection's rows: tiles of 16 rows that a warp holds at a
// time. Written by `make sweep-gpu`: NVIDIA H200, driver 580.159.04, 2026-11-30.
// A cut never changes a bit.
#pragma once

namespace vcuda::gpu {

struct MeasuredCut {
  int rows, cols, tiles;
};

constexpr int kMeasuredMultiprocessors = 132;  // of the device that was measured
// clang-format off
constexpr MeasuredCut kMeasuredCuts[] = {
    {16384, 5120, 8},  // 27b gdn in
    {14336, 5120, 7},  // 27b attention in
    {5120, 6144, 5},  // 27b out
    {34816, 5120, 11},  // 27b gate_up
    {5120, 17408, 5},  // 27b down
    {248320, 5120, 11},  // 27b head
    {12288, 2048, 8},  // mid gdn in
    {5120, 2048, 5},  // mid attention in
    {2048, 4096, 5},  // mid gdn out
    {2048, 2048, 5},  // mid attention out
    {12288, 2048, 8},  // mid gate_up
    {2048, 6144, 2},  // mid down
    {32768, 2048, 11},  // mid head
};
// clang-format on

}  // namespace vcuda::gpu
