// SPDX-License-Identifier: Apache-2.0
#include "cuda/places.hpp"

#include <cuda_runtime_api.h>

#include <optional>

#include "cuda/launch/launch.hpp"
#include "refusal/refusal.hpp"

namespace heed::cuda {
namespace {

int ordinal_of_address(const char* name, const void* data) {
  cudaPointerAttributes found{};
  check(cudaPointerGetAttributes(&found, data), "cudaPointerGetAttributes");
  if (found.type != cudaMemoryTypeDevice && found.type != cudaMemoryTypeManaged)
    throw refusal(Error::device, name, ".data: the address is in no CUDA device's memory");
  return found.device;
}

// The ordinal of the first of several, and that the others have it.
class Place {
 public:
  void add(const char* name, const void* data) {
    if (data == nullptr) return;
    const int ordinal = ordinal_of_address(name, data);
    if (!first_name_) first_name_ = name, ordinal_ = ordinal;
    if (ordinal != ordinal_)
      throw refusal(Error::device, name, ".data: it lies on CUDA device ", std::int64_t{ordinal}, ", ",
                    first_name_, " on ", std::int64_t{ordinal_});
  }
  void add(const char* name, const View& x) {
    if (x.shape.elements() > 0) add(name, x.data);
  }
  template <class AnyView>
  void add(const char* name, const std::optional<AnyView>& x) {
    if (x) add(name, View(*x));
  }
  // That of the current device where nothing lies anywhere.
  int ordinal() const {
    if (first_name_) return ordinal_;
    int current = 0;
    check(cudaGetDevice(&current), "cudaGetDevice");
    return current;
  }

 private:
  const char* first_name_ = nullptr;
  int ordinal_ = 0;
};

}  // namespace

int ordinal_of(const Problem& p) {
  Place place;
  place.add("q", p.inputs.q);
  place.add("k", p.inputs.k);
  place.add("v", p.inputs.v);
  place.add("out", View(p.outputs.out));
  place.add("weights", p.outputs.weights);
  place.add("log_sum_exp", p.outputs.log_sum_exp);
  place.add("scores", p.outputs.scores.into);
  place.add("options.bias", p.options.bias);
  place.add("options.sink", p.options.sink);
  for (const BoolMask& mask : p.bool_masks)
    if (mask.device == Device::cuda) place.add("options.masks", mask.data);
  for (std::size_t n = 0; p.reading && n < p.sequences.size(); ++n)
    if (p.sequences[n].keys > 0) place.add("cache", p.cached[n].table[0]);
  return place.ordinal();
}

int ordinal_of(const char* name, const View& x) {
  Place place;
  place.add(name, x);
  return place.ordinal();
}

Current::Current(int ordinal) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  if (ordinal != before_) check(cudaSetDevice(ordinal), "cudaSetDevice");
}

Current::~Current() { cudaSetDevice(before_); }

}  // namespace heed::cuda
