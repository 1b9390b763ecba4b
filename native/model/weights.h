// From the ABI's tensors to a backend's weights, every name, shape and type checked against the
// configuration.
#pragma once

#include <memory>

#include "model/backend.h"

namespace vcuda {

// VCUDA_E_MODEL names the tensor and both shapes.
Weights load_weights(Backend&, const Config&, const vcuda_model_desc&);

}  // namespace vcuda
