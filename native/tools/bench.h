// What the benchmarks share: medians, the copy rate that every share is of, the machine's
// description, JSON.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "build_info.h"
#include "cuda/device.h"

namespace bench {

using vcuda::gpu::check;

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Median time of f on the stream, in microseconds, after two calls that do not count.
template <class F>
double median_us(cudaStream_t stream, int repeats, const F& f) {
  vcuda::gpu::Event begin, end;
  begin.create(), end.create();
  std::vector<double> times;
  for (int i = 0; i < repeats + 2; ++i) {
    check(cudaEventRecord(begin, stream), "event");
    f();
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "event");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 2) times.push_back(ms * 1000.0);
  }
  return median(times);
}

// GB/s of a copy on the device, bytes read plus bytes written.
inline double copy_rate(cudaStream_t stream) {
  const size_t bytes = size_t{2} << 30;
  vcuda::gpu::Temporary a(bytes), b(bytes);
  return 2.0 * static_cast<double>(bytes) / 1e3 / median_us(stream, 7, [&] {
           check(cudaMemcpyAsync(b.get(), a.get(), bytes, cudaMemcpyDeviceToDevice, stream),
                 "copy");
         });
}

// The revision in VCUDA_BUILD_INFO, which is JSON's members as text.
inline std::string built_from() {
  const std::string info = VCUDA_BUILD_INFO, before = "\"revision\": \"";
  const size_t at = info.find(before) + before.size();
  const bool dirty = info.find("\"dirty\": true") != info.npos;
  return info.substr(at, info.find('"', at) - at) + (dirty ? "+" : "");
}

struct Machine {
  cudaDeviceProp p;
  std::string driver = "unknown", date, revision;  // of native/, with a + where it was changed

  Machine() {
    check(cudaGetDeviceProperties(&p, 0), "device");
    if (FILE* file = std::fopen("/sys/module/nvidia/version", "r")) {
      char text[64] = {};
      if (std::fgets(text, sizeof text, file)) driver.assign(text, std::strcspn(text, "\n"));
      std::fclose(file);
    }
    const std::time_t now = std::time(nullptr);
    char day[16];
    std::strftime(day, sizeof day, "%Y-%m-%d", std::gmtime(&now));
    date = day;
    revision = built_from();
  }
};

// A JSON document, written in order.
class Json {
 public:
  Json& open(char bracket, const char* name = nullptr) {
    item(name), text_ += bracket, fresh_ = true;
    closing_ += bracket == '{' ? '}' : ']';
    return *this;
  }
  Json& close() {
    text_ += closing_.back(), closing_.pop_back(), fresh_ = false;
    return *this;
  }
  Json& field(const char* name, const std::string& value) {
    return item(name), text_ += '"' + value + '"', *this;
  }
  Json& field(const char* name, const char* value) { return field(name, std::string(value)); }
  Json& field(const char* name, double value, int digits = 3) {
    char text[48];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return item(name), text_ += text, *this;
  }
  Json& field(const char* name, int value) {
    return item(name), text_ += std::to_string(value), *this;
  }
  Json& machine(const Machine& m, double copy_gb_s) {
    return field("device", m.p.name)
        .field("driver", m.driver)
        .field("date", m.date)
        .field("revision", m.revision)
        .field("copy_gb_s", copy_gb_s, 1);
  }
  void write(const std::string& path) const {
    FILE* file = std::fopen(path.c_str(), "w");
    if (!file || std::fputs((text_ + "\n").c_str(), file) < 0 || std::fclose(file))
      vcuda::fail(VCUDA_E_ARGUMENT, "%s: cannot be written", path.c_str());
  }

 private:
  void item(const char* name) {
    if (!fresh_ && !text_.empty()) text_ += ",";
    if (!text_.empty() && closing_.size() <= 2) text_ += "\n" + std::string(closing_.size(), ' ');
    if (name) text_ += '"' + std::string(name) + "\": ";
    fresh_ = false;
  }
  std::string text_, closing_;
  bool fresh_ = false;
};

inline std::vector<int> numbers(const char* text) {
  std::vector<int> v;
  for (const char* p = text; *p;) {
    char* end;
    v.push_back(static_cast<int>(std::strtol(p, &end, 10)));
    if (end == p || (*end && *end != ','))
      vcuda::fail(VCUDA_E_ARGUMENT, "'%s' is no list of numbers", text);
    p = *end ? end + 1 : end;
  }
  return v;
}

}  // namespace bench
