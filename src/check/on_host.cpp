// SPDX-License-Identifier: Apache-2.0
#include "check/on_host.hpp"

#include "plan/backends.hpp"

namespace heed::checking {

using planning::backend_of;

ViewOnHost::ViewOnHost(const char* name, const View& x) : view_(x) {
  if (x.device == Device::cpu) return;
  const auto bytes = static_cast<std::size_t>(x.shape.elements()) * bytes_of(x.dtype);
  memory_ = backend_of(name, Device::cpu).allocate(bytes);
  const MutableView copy{memory_.get(), x.shape, x.dtype};
  backend_of(name, x.device).copy(x, copy);
  view_ = copy;
  if (x.shape.batch == 1) view_.stride.batch = 0;  // as packed sequences share their rows
}

ProblemOnHost::ProblemOnHost(const Problem& p)
    : gathered_(p, backend_of("q", Device::cpu)),
      q_("q", problem().inputs.q),
      k_("k", problem().inputs.k),
      v_("v", problem().inputs.v) {
  Problem& own = gathered_.problem;
  for (const BoolMask& mask : own.bool_masks)
    if (mask.device != Device::cpu)
      throw refusal(Error::unsupported, "options.masks: a check reads booleans of the CPU's memory, not of ",
                    mask.device, "'s");
  if (own.bias) own.bias = bias_.emplace("options.bias", *own.bias).view();
  if (own.sink) own.sink = sink_.emplace("options.sink", *own.sink).view();
  own.inputs.q = q_.view();
  own.inputs.k = k_.view();
  own.inputs.v = v_.view();
}

}  // namespace heed::checking
