// SPDX-License-Identifier: Apache-2.0
// What the backend does beside attention, on the device's legacy stream.
#pragma once
#include <memory>
#include <span>

#include "backend/backend.hpp"

namespace heed::cuda {

void copy(const View& from, const MutableView& into);
void add(const View& from, const MutableView& into);
void average_heads(const View& from, const MutableView& into);
void fill(const MutableView&, float);
void merge(const Outputs& into, const Results& other);
void rotate(const MutableView& x, std::span<const std::int64_t> positions, const Rotary&,
            std::span<const std::int64_t> lengths);
std::unique_ptr<backend::DevicePages> make_pages(std::int64_t bytes);

}  // namespace heed::cuda
