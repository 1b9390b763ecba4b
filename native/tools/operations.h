// The operations of model/backend.h at the 27B's dimensions, one class each, on any backend: so
// that the same calls can be made on two backends and compared, and repeated and timed on one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/backend.h"

namespace bench {

class Operation {
 public:
  virtual ~Operation() = default;
  // Weights, inputs and outputs of m rows in the backend's memory, `copies` times where the step
  // has more than one: a repeated call then finds as little in the caches as the step does.
  virtual void prepare(vcuda::Backend&, int m, int copies) = 0;
  virtual void call(vcuda::Backend&, const vcuda::StepInput&, int copy) = 0;
  // All that call 0 left, in layouts that every backend shares.
  virtual std::vector<float> result(vcuda::Backend&) = 0;
  // What a call must read and write, each byte once.
  virtual double bytes(int m) const = 0;
  // Where the call stands: position and context of the step.
  virtual int position() const { return 0; }
  virtual int context() const { return 1; }
  // The states that it reads and writes, if any.
  virtual const vcuda::StateSlot* from() const { return nullptr; }
  virtual const vcuda::StateSlot* to() const { return nullptr; }
};

struct OperationCase {
  std::string name;
  int copies;  // in the timed graph
  std::function<std::unique_ptr<Operation>()> make;
};

vcuda::Config config_27b();
std::vector<OperationCase> operation_cases();

// A step of these dimensions, filled for one call.
vcuda::StepInput step_input(const Operation&, int m, int graph);

}  // namespace bench
