#include "tools/cuts.h"

#include "cuda/project.h"
#include "kernels/quantize.cuh"
#include "kernels/synth.cuh"
#include "tools/bench.h"

namespace bench {

using namespace vcuda;
using namespace vcuda::gpu;

namespace {

// The projections of the synthetic models of size 27b and mid, float32 rows left out.
struct Shape {
  const char* name;
  int rows, cols;
};
const Shape kShapes[] = {
    {"27b gdn in", 16384, 5120},  {"27b attention in", 14336, 5120},
    {"27b out", 5120, 6144},      {"27b gate_up", 34816, 5120},
    {"27b down", 5120, 17408},    {"27b head", 248320, 5120},
    {"mid gdn in", 12288, 2048},  {"mid attention in", 5120, 2048},
    {"mid gdn out", 2048, 4096},  {"mid attention out", 2048, 2048},
    {"mid gate_up", 12288, 2048}, {"mid down", 2048, 6144},
    {"mid head", 32768, 2048},
};

struct Measured {
  int tiles = 0;
  double us = 0;  // sum over the Ms
};

class Sweep {
 public:
  Sweep(const Limits& limits, const Stream& stream, double rate)
      : limits_(limits), stream_(stream), rate_(rate) {}

  // The fastest cut of the shape.
  Measured run(const Shape& shape, const std::vector<int>& ms) {
    shape_ = &shape, groups_ = shape.cols / 32;
    Arena inputs;
    x_ = static_cast<float*>(inputs.alloc(sizeof(float) * 8 * shape.cols));
    act_ = static_cast<uint8_t*>(inputs.alloc(act_block_offset(groups_, 1)));
    for (float*& y : y_) y = static_cast<float*>(inputs.alloc(sizeof(float) * 8 * shape.rows));
    kernel_synth_float<<<256, 256, 0, stream_>>>(arith::SynthStream::of(1, 2), 0.0f, 1.0f,
                                                 VCUDA_F32, true, size_t{8} * shape.cols, x_);
    check(cudaGetLastError(), "inputs");
    reference_.assign(9, {});
    Measured best;
    Q4Matrix planned;
    for (int variant = 0; plan_variant(variant, shape.rows, groups_, limits_, planned); ++variant) {
      if (planned.ring && planned.clusters == 0) continue;
      const double us = measure(planned, ms);
      if (planned.ring && us > 0 && (best.tiles == 0 || us < best.us))
        best = {planned.shape.tiles, us};
    }
    return best;
  }
  int different() const { return different_; }

 private:
  // Sum of the times over the Ms; 0 for the simple kernel, which is only a reference.
  double measure(const Q4Matrix& planned, const std::vector<int>& ms) {
    const Q4Shape& q = planned.shape;
    vcuda_tensor t{};
    t.type = VCUDA_Q4, t.synth = {1, 77, 0.0f, 0.01f};
    const std::vector<Tensor> tensors{{&t, shape_->rows, shape_->cols}};
    Arena arena;
    // Enough copies that none is found in the second-level cache.
    const size_t copies =
        planned.ring ? std::min<size_t>(16, (size_t{300} << 20) / q.bytes() + 1) : 1;
    std::vector<Q4Matrix> matrices(copies, planned);
    for (Q4Matrix& m : matrices) pack_matrix(m, tensors, arena, stream_);
    double sum = 0;
    for (int m : ms) {
      if (!equal(matrices[0], m)) {
        std::printf("%-18s M %d tiles %2d  DIFFERS from the simple kernel\n", shape_->name, m,
                    q.tiles);
        ++different_;
        return 0;
      }
      if (!planned.ring) continue;
      const double us = time(matrices, m), bytes = shape_->rows * double(groups_) * 18;
      sum += us;
      std::printf(
          "%-18s M %d tiles %2d clusters %3d passes %3d  %7.2f us  %5.0f GB/s  %5.1f %% of the "
          "copy rate\n",
          shape_->name, m, q.tiles, planned.clusters, ceil_div(q.slabs(), planned.clusters), us,
          bytes / us / 1e3, 100 * bytes / us / 1e3 / rate_);
    }
    return sum;
  }

  Projection to(const Q4Matrix& matrix, int m, int y) const {
    return projection(matrix, 0, act_, {}, m, {y_[y], shape_->rows, false, {}, nullptr, nullptr});
  }

  bool equal(const Q4Matrix& matrix, int m) {
    stream_.launch("quantize", kernel_quantize,
                   dim3(static_cast<unsigned>(ceil_div(groups_, 8)), static_cast<unsigned>(m)),
                   dim3(256), 0, 1, x_, shape_->cols, m, act_);
    check(cudaMemsetAsync(y_[1], 0xff, sizeof(float) * 8 * shape_->rows, stream_), "fill");
    project_q4(matrix, limits_, to(matrix, m, 1), stream_);
    std::vector<float> out(static_cast<size_t>(m) * shape_->rows);
    check(cudaStreamSynchronize(stream_), "project");
    check(cudaMemcpy(out.data(), y_[1], out.size() * sizeof(float), cudaMemcpyDeviceToHost),
          "copy");
    std::vector<float>& reference = reference_[static_cast<size_t>(m)];
    if (reference.empty()) reference = out;
    return std::memcmp(out.data(), reference.data(), out.size() * sizeof(float)) == 0;
  }

  double time(const std::vector<Q4Matrix>& matrices, int m) {
    const size_t launches = std::max<size_t>(matrices.size(), 16);
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    for (size_t i = 0; i < launches; ++i) {
      const Q4Matrix& matrix = matrices[i % matrices.size()];
      project_q4(matrix, limits_, to(matrix, m, static_cast<int>(i % 2)), stream_);
    }
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamEndCapture(stream_, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    const double us =
        median_us(stream_, 7, [&] { check(cudaGraphLaunch(exec, stream_), "launch"); });
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    return us / static_cast<double>(launches);
  }

  const Limits& limits_;
  const Stream& stream_;
  double rate_;
  const Shape* shape_ = nullptr;
  int groups_ = 0, different_ = 0;
  float *x_ = nullptr, *y_[2] = {};
  uint8_t* act_ = nullptr;
  std::vector<std::vector<float>> reference_;  // [m]: the simple kernel's rows
};

void write_table(const std::string& path, const Machine& machine, const std::string& rows) {
  FILE* file = std::fopen(path.c_str(), "w");
  if (!file ||
      std::fprintf(
          file,
          "// The fastest cut of each projection's rows: tiles of 16 rows that a warp holds at a\n"
          "// time. Written by `make sweep-gpu`: %s, driver %s, %s.\n"
          "// A cut never changes a bit.\n"
          "#pragma once\n\n"
          "namespace vcuda::gpu {\n\n"
          "struct MeasuredCut {\n"
          "  int rows, cols, tiles;\n"
          "};\n\n"
          "constexpr int kMeasuredMultiprocessors = %d;  // of the device that was measured\n"
          "// clang-format off\n"
          "constexpr MeasuredCut kMeasuredCuts[] = {\n"
          "%s"
          "};\n"
          "// clang-format on\n\n"
          "}  // namespace vcuda::gpu\n",
          machine.p.name, machine.driver.c_str(), machine.date.c_str(),
          machine.p.multiProcessorCount, rows.c_str()) < 0 ||
      std::fclose(file))
    fail(VCUDA_E_ARGUMENT, "%s: cannot be written", path.c_str());
}

}  // namespace

int sweep_cuts(const std::vector<int>& ms, const std::string& table) {
  const Machine machine;
  const Limits limits = find_limits(machine.p, true);
  if (limits.clusters == 0)
    fail(VCUDA_E_UNSUPPORTED, "%s has one cut only: there is nothing to sweep", machine.p.name);
  Stream stream;
  stream.create(true);
  const double rate = copy_rate(stream);
  std::printf("%s, %d multiprocessors, copy %.0f GB/s\n", machine.p.name,
              machine.p.multiProcessorCount, rate);
  Sweep sweep(limits, stream, rate);
  std::string rows;
  for (const Shape& shape : kShapes) {
    const Measured best = sweep.run(shape, ms);
    const int rule = plan_matrix(shape.rows, shape.cols / 32, limits).shape.tiles;
    std::printf("%-18s fastest: %d tiles, %.2f us over the Ms; in use: %d\n", shape.name,
                best.tiles, best.us, rule);
    std::fflush(stdout);
    char row[120];
    std::snprintf(row, sizeof row, "    {%d, %d, %d},  // %s\n", shape.rows, shape.cols, best.tiles,
                  shape.name);
    rows += row;
  }
  if (sweep.different()) return 1;
  if (!table.empty()) write_table(table, machine, rows);
  return 0;
}

}  // namespace bench
