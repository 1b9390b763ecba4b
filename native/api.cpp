// The ABI's edge: checks what C callers can get wrong, turns exceptions into a status and a line of
// text. Nothing else throws past it.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "arith/bits.h"
#include "build_info.h"
#include "model/error.h"
#include "model/model.h"
#include "vllm_cuda.h"

struct vcuda_dev {
  std::unique_ptr<vcuda::Backend> backend;
  std::unique_ptr<vcuda::Model> model;
};

namespace {

thread_local char g_error[512];

void set_error(const char* text) {
  std::strncpy(g_error, text, sizeof g_error - 1);
  g_error[sizeof g_error - 1] = 0;
}

template <class F>
vcuda_status guarded(const F& f) {
  g_error[0] = 0;
  try {
    f();
    return VCUDA_OK;
  } catch (const vcuda::Error& e) {
    set_error(e.what());
    return e.status();
  } catch (const std::bad_alloc&) {
    set_error("out of memory");
    return VCUDA_E_MEMORY;
  } catch (const std::exception& e) {
    set_error(e.what());
    return VCUDA_E_INTERNAL;
  } catch (...) {
    set_error("an unknown exception");
    return VCUDA_E_INTERNAL;
  }
}

vcuda::Model& model_of(vcuda_dev* dev) {
  if (!dev) vcuda::fail(VCUDA_E_ARGUMENT, "dev is NULL");
  if (!dev->model) vcuda::fail(VCUDA_E_ARGUMENT, "no model is loaded on this dev");
  return *dev->model;
}

// A caller compiled with an older header has a shorter struct, with a newer one a longer: copy what
// both know.
template <class T>
T sized_copy(const T* from, const char* name) {
  if (!from) vcuda::fail(VCUDA_E_ARGUMENT, "%s is NULL", name);
  if (from->struct_size < sizeof(uint32_t))
    vcuda::fail(VCUDA_E_ARGUMENT, "%s: struct_size is %u", name, from->struct_size);
  T copy{};
  std::memcpy(&copy, from, std::min<size_t>(sizeof(T), from->struct_size));
  return copy;
}

// Tells the size of one part of a layer; true when the buffer is to be filled.
bool fits(uint64_t size, const void* buffer, uint64_t bytes, uint64_t* needed, const char* what,
          int layer) {
  if (needed) *needed = size;
  if (buffer && bytes != size)
    vcuda::fail(VCUDA_E_ARGUMENT, "%s: buffer has %llu bytes, this part of layer %d has %llu", what,
                static_cast<unsigned long long>(bytes), layer,
                static_cast<unsigned long long>(size));
  return buffer != nullptr;
}

}  // namespace

extern "C" {

int32_t vcuda_abi_version(void) { return VCUDA_ABI_VERSION; }

const char* vcuda_build_info(void) {
  static const std::string text = "{" + vcuda::backend_info() + ", \"bits_version\": " +
                                  std::to_string(vcuda::arith::kBitsVersion) +
                                  ", " VCUDA_BUILD_INFO "}";
  return text.c_str();
}

const char* vcuda_last_error(void) { return g_error; }

vcuda_status vcuda_dev_open(const vcuda_dev_options* options, vcuda_dev** out) {
  return guarded([&] {
    if (!out) vcuda::fail(VCUDA_E_ARGUMENT, "out is NULL");
    *out = nullptr;
    auto dev = std::make_unique<vcuda_dev>();
    dev->backend = vcuda::make_backend(sized_copy(options, "options"));
    *out = dev.release();
  });
}

vcuda_status vcuda_dev_close(vcuda_dev* dev) {
  return guarded([&] { delete dev; });
}

vcuda_status vcuda_dev_model_load(vcuda_dev* dev, const vcuda_model_desc* desc) {
  return guarded([&] {
    if (!dev || !desc) vcuda::fail(VCUDA_E_ARGUMENT, "dev or desc is NULL");
    dev->model.reset();
    dev->backend->free_all();
    try {
      dev->model = std::make_unique<vcuda::Model>(*dev->backend, *desc);
    } catch (...) {
      dev->backend->free_all();
      throw;
    }
  });
}

vcuda_status vcuda_dev_model_reset(vcuda_dev* dev) {
  return guarded([&] { model_of(dev).reset(); });
}

vcuda_status vcuda_dev_model_info(vcuda_dev* dev, vcuda_model_info* out) {
  return guarded([&] {
    vcuda_model_info info = sized_copy(out, "out");
    model_of(dev).info(info);
    std::memcpy(out, &info, std::min<size_t>(sizeof info, info.struct_size));
  });
}

vcuda_status vcuda_dev_model_step(vcuda_dev* dev, int32_t token, float* h_out, float* logits) {
  return guarded([&] { model_of(dev).step(&token, 1, h_out, logits); });
}

vcuda_status vcuda_dev_model_step_m(vcuda_dev* dev, int32_t m, const int32_t* tokens, float* h_out,
                                    float* logits) {
  return guarded([&] { model_of(dev).step_m(tokens, m, h_out, logits); });
}

vcuda_status vcuda_dev_model_mark(vcuda_dev* dev) {
  return guarded([&] { model_of(dev).mark(); });
}

vcuda_status vcuda_dev_model_rollback(vcuda_dev* dev) {
  return guarded([&] { model_of(dev).rollback(); });
}

vcuda_status vcuda_dev_model_rollback_to(vcuda_dev* dev, int32_t n) {
  return guarded([&] { model_of(dev).rollback_to(n); });
}

vcuda_status vcuda_dev_poison(vcuda_dev* dev, uint32_t word) {
  return guarded([&] { model_of(dev).poison(word); });
}

vcuda_status vcuda_dev_model_taps(vcuda_dev* dev, int32_t on) {
  return guarded([&] {
    if (on != 0 && on != 1) vcuda::fail(VCUDA_E_ARGUMENT, "taps: on is %d, must be 0 or 1", on);
    model_of(dev).taps(on == 1);
  });
}

vcuda_status vcuda_dev_model_state_read(vcuda_dev* dev, int32_t layer, int32_t kind, void* buffer,
                                        uint64_t bytes, uint64_t* needed) {
  return guarded([&] {
    const vcuda::Model& model = model_of(dev);
    if (fits(model.state_size(layer, kind), buffer, bytes, needed, "state_read", layer))
      model.state_read(layer, kind, buffer);
  });
}

vcuda_status vcuda_dev_model_tap_read(vcuda_dev* dev, int32_t layer, int32_t kind, void* buffer,
                                      uint64_t bytes, uint64_t* needed) {
  return guarded([&] {
    const vcuda::Model& model = model_of(dev);
    if (fits(model.tap_size(layer, kind), buffer, bytes, needed, "tap_read", layer))
      model.tap_read(layer, kind, buffer);
  });
}

}  // extern "C"
