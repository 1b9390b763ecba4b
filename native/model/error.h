// The one exception of the library: a status of the ABI and one line of text. api.cpp catches it at
// the edge.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <string>

#include "vllm_cuda.h"

namespace vcuda {

class Error : public std::exception {
 public:
  Error(vcuda_status status, std::string text) : status_(status), text_(std::move(text)) {}
  vcuda_status status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  vcuda_status status_;
  std::string text_;
};

#if defined(__GNUC__)
[[noreturn]] inline void fail(vcuda_status status, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
#endif

[[noreturn]] inline void fail(vcuda_status status, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Error(status, text);
}

}  // namespace vcuda
