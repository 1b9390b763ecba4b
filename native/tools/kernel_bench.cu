// kernel_bench [--m N,...] [--only TEXT] [--json PATH]
// kernel_bench --cuts [--m N,...] [--table PATH]
//
// Each operation at the 27B's dimensions: first its bytes against the CPU backend's, then its time
// (median over graphs of repeated calls), with the bytes that it must move and their share of the
// copy rate of the same run. --cuts: each compiled cut of the projections' rows instead, by bytes
// against the simple kernel's; --table writes the fastest as native/cuda/cuts.h. Exit status 0:
// every byte equal; 1: a difference; 2: a wrong call, or no device.
#include <cstdlib>
#include <functional>

#include "tools/bench.h"
#include "tools/cuts.h"
#include "tools/operations.h"

namespace vcuda {
std::unique_ptr<Backend> make_reference(const vcuda_dev_options&);  // cpu/backend.cpp
}

namespace bench {

using namespace vcuda;

struct Options {
  std::vector<int> ms{1, 2, 4, 8};
  std::string only, json, table;
  bool cuts = false;
};

// What one call leaves. The backend forgets everything afterwards.
std::vector<float> once(Backend& b, Operation& o, int m) {
  o.prepare(b, m, 1);
  b.begin(step_input(o, m, -1));
  o.call(b, step_input(o, m, -1), 0);
  std::vector<float> v = o.result(b);
  b.free_all();
  return v;
}

// Median time in microseconds of a graph of these calls, behind a small embedding: every step has
// one, and what changes from step to step comes with it.
double graph_us(Backend& b, Operation& o, int m, int calls) {
  Config c{};
  c.hidden = c.vocab = 32;
  const size_t n = static_cast<size_t>(m) * 32;
  float* zeros = b.upload_floats(std::vector<float>(n, 0.0f));
  vcuda_tensor table{};
  table.type = VCUDA_F32, table.synth = {7, 1, 0.0f, 1.0f};
  Weights weights;
  weights.embedding = b.upload_embedding(Tensor{&table, 32768, c.hidden});
  float* rows = static_cast<float*>(b.alloc(n * sizeof(float)));
  std::vector<float> h(n), logits(n);
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    const StepInput in = step_input(o, m, calls == 0 ? 1 : 0);
    b.begin(in);
    b.embed(weights, c, in, rows);
    for (int k = 0; k < calls; ++k) o.call(b, in, k);
    b.end(c, m, zeros, zeros, h.data(), logits.data());
    if (i >= 3) times.push_back(b.step_seconds() * 1e6);
  }
  return median(times);
}

int operations(const Options& options) {
  const Machine machine;
  const double rate = copy_rate(nullptr);
  const vcuda_dev_options open{sizeof(vcuda_dev_options), 0, 0};
  const std::unique_ptr<Backend> cpu = make_reference(open), gpu = make_backend(open);
  std::printf("%s, driver %s, copy %.0f GB/s\n", machine.p.name, machine.driver.c_str(), rate);
  Json json;
  json.open('{').machine(machine, rate).open('[', "operations");
  int different = 0;
  for (const OperationCase& c : operation_cases()) {
    if (c.name.find(options.only) == std::string::npos) continue;
    for (int m : options.ms) {
      const std::vector<float> expected = once(*cpu, *c.make(), m),
                               found = once(*gpu, *c.make(), m);
      if (expected.size() != found.size() ||
          std::memcmp(expected.data(), found.data(), expected.size() * sizeof(float)) != 0) {
        std::printf("%-24s M %d  DIFFERS from the CPU\n", c.name.c_str(), m);
        ++different;
        continue;
      }
      const std::unique_ptr<Operation> o = c.make();
      o->prepare(*gpu, m, c.copies);
      const double us = (graph_us(*gpu, *o, m, c.copies) - graph_us(*gpu, *o, m, 0)) / c.copies;
      gpu->free_all();
      const double bytes = o->bytes(m), share = bytes / us / 1e3 / rate;
      std::printf("%-24s M %d  %9.2f us  %8.2f MB  %6.1f GB/s  %5.1f %% of the copy rate\n",
                  c.name.c_str(), m, us, bytes / 1e6, bytes / us / 1e3, 100 * share);
      std::fflush(stdout);
      json.open('{').field("operation", c.name).field("m", m).field("us", us, 2);
      json.field("bytes", bytes, 0).field("share_of_copy", share).close();
    }
  }
  json.close().close();
  if (!options.json.empty() && different == 0) json.write(options.json);
  return different ? 1 : 0;
}

}  // namespace bench

int main(int argc, char** argv) {
  try {
    bench::Options o;
    for (int i = 1; i < argc; ++i) {
      const std::string a = argv[i];
      if (a == "--cuts") {
        o.cuts = true;
        continue;
      }
      if (i + 1 == argc)
        vcuda::fail(VCUDA_E_ARGUMENT, "%s: unknown, or without a value", a.c_str());
      const char* value = argv[++i];
      if (a == "--m") o.ms = bench::numbers(value);
      else if (a == "--only") o.only = value;
      else if (a == "--json") o.json = value;
      else if (a == "--table") o.table = value;
      else vcuda::fail(VCUDA_E_ARGUMENT, "%s: unknown", a.c_str());
    }
    for (int m : o.ms)
      if (m < 1 || m > 8) vcuda::fail(VCUDA_E_ARGUMENT, "--m: %d is not from 1 to 8", m);
    return o.cuts ? bench::sweep_cuts(o.ms, o.table) : bench::operations(o);
  } catch (const vcuda::Error& e) {
    std::fprintf(stderr, "kernel_bench: %s\n", e.what());
    return 2;
  }
}
