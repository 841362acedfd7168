// SPDX-License-Identifier: Apache-2.0
// Sentences about a part of something begin with the name of the whole, put together only when there is one.
#pragma once
#include "heed/error.hpp"
#include "refusal/refusal.hpp"

namespace heed::c {

template <class Body, class... Parts>
auto qualified(const Body& body, const Parts&... whole) {
  try {
    return body();
  } catch (const Error& refused) {
    throw refusal(refused.code, whole..., refused.what());
  }
}

}  // namespace heed::c
