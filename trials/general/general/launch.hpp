// SPDX-License-Identifier: Apache-2.0
// The kernels that were compiled, which of them takes a call, and its launch.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "general/shape.hpp"

namespace heed::cuda::general {

enum class SourceKind : std::uint8_t { arrays, pages, int8_pages };

constexpr int any_dim = 1 << 20, slab_dims = 256;  // of a kernel that takes every head in slabs

struct Kernel {
  const char* name;
  Type type;
  int dim, value_dim, rows;
  SourceKind source;
  int features;  // of the stage; -1: nothing but ranges
  bool is_few;   // is_few: for calls whose rows of a KV head all fit one block
  int threads, shared_bytes, blocks, tile_keys, key_warps;
  const void* attend;
  const void* merge;
  const void* inspect = nullptr;
};

std::vector<Kernel>& kernels();

// What a stage must be able to do; -1: only ranges of keys, and a scale that keeps the order of scores.
int features_of(const Call&);
const Kernel* kernel_for(const Call&, std::string_view forced = {});

struct Launch {
  const Kernel* kernel;
  Plan plan;
  std::int64_t blocks, units, partial_floats, kept_ends;
};
// units_each 0: as many as keep the device busy; no bit depends on it.
Launch plan_launch(const Call&, const Kernel&, int unit_keys = 0, int units_each = 0);
// 0, or CUDA's code.
int launch(const Call&, const Launch&, void* stream);

}  // namespace heed::cuda::general
