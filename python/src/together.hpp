// SPDX-License-Identifier: Apache-2.0
// A rank whose arguments cannot even be read still has its part in the call, which all of them refuse then.
#pragma once
#include <memory>
#include <string>

#include "choices.hpp"
#include "heed/distributed.hpp"
#include "python_messages.hpp"

namespace heed::python {

inline Group& read_group(nb::handle object) {
  if (!nb::isinstance<Group>(object))
    throw wrong_kind("group", object, "what heed.distributed.group returns");
  return nb::cast<Group&>(object);
}

// What a call over ranks was asked, made of its arguments.
template <class Asked, class... Arguments>
std::unique_ptr<Asked> read_together(Group& group, const Arguments&... arguments) {
  try {
    return std::make_unique<Asked>(arguments...);
  } catch (const Error& refused) {
    const std::string why = refused.what();
    try {
      compute([&] { heed::refuse(group, why); });
    } catch (const Error&) {  // which names this rank, too
    }
    throw;
  } catch (nb::python_error& raised) {  // by a handler of a signal: this rank will not come
    const std::string why = in_words(raised);
    compute([&] { group.abort(why); });
    throw;
  }
}

}  // namespace heed::python
