// SPDX-License-Identifier: Apache-2.0
// See suites.hpp.
#include "bench/suites.hpp"

#include <algorithm>

namespace heed::tool {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16};

// Batch 2, 1024 tokens, model 768, 12 query heads: multi-head, grouped and multi-query.
Case twelve_heads(Role role, std::int64_t kv_heads) {
  return {
      .role = role, .batch = 2, .heads = 12, .kv_heads = kv_heads, .queries = 1024, .keys = 1024, .dim = 64};
}

void add_heads(std::vector<Case>& cases) {
  for (const Role role : {Role::prefill, Role::layer})
    for (const std::int64_t kv_heads : {12, 6, 1}) cases.push_back(twelve_heads(role, kv_heads));
}

void add_prefill(std::vector<Case>& cases, Size size) {
  const std::int64_t length = size == Size::quick ? 2048 : 4096;
  const Case shapes[] = {
      {.heads = 12, .kv_heads = 12, .queries = 1024, .keys = 1024, .dim = 64},
      {.heads = 32, .kv_heads = 8, .queries = length, .keys = length, .dim = 128},
  };
  for (Case shape : shapes)
    for (const DType dtype : dtypes)
      for (const Between between : {Between::nothing, Between::causal}) {
        shape.dtype = dtype;
        shape.between = between;
        cases.push_back(shape);
      }
  // Short sequences, and heads of a size that fills no vector of sixteen twice.
  for (const DType dtype : {DType::f32, DType::bf16}) {
    cases.push_back({.dtype = dtype, .heads = 12, .kv_heads = 12, .queries = 128, .keys = 128, .dim = 64});
    cases.push_back({.dtype = dtype, .heads = 16, .kv_heads = 16, .queries = 512, .keys = 512, .dim = 80});
  }
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Between between : {Between::bias, Between::keep}) {
      Case masked = shapes[0];
      masked.dtype = dtype;
      masked.between = between;
      cases.push_back(masked);
    }
}

void add_decode(std::vector<Case>& cases) {
  struct Heads {
    std::int64_t query, kv;
  };
  for (const Heads heads : {Heads{32, 8}, Heads{8, 8}, Heads{32, 1}})
    for (const std::int64_t keys : {4096, 32768})
      for (const DType dtype : dtypes)
        cases.push_back({.role = Role::decode,
                         .dtype = dtype,
                         .heads = heads.query,
                         .kv_heads = heads.kv,
                         .keys = keys,
                         .dim = 128});
}

// 32768 tokens: in one sequence, contiguous and in pages of 64, and in 64 sequences of mixed length. Then 64
// queries at once, as a long prompt that comes in parts asks them.
void add_caches(std::vector<Case>& cases) {
  struct Kept {
    CacheType type;
    DType query;
  };
  for (const Kept kept : {Kept{CacheType::f32, DType::f32}, Kept{CacheType::bf16, DType::bf16},
                          Kept{CacheType::f16, DType::f16}, Kept{CacheType::int8, DType::f32}}) {
    Case c{.role = Role::cache,
           .dtype = kept.query,
           .heads = 32,
           .kv_heads = 8,
           .keys = 32768,
           .dim = 128,
           .stored = kept.type};
    cases.push_back(c);
    c.page_size = 64;
    cases.push_back(c);
    c.page_size = 0;
    c.batch = 64;
    c.keys /= c.batch;
    c.is_mixed = true;
    cases.push_back(c);
    cases.push_back({.role = Role::cache,
                     .dtype = kept.query,
                     .heads = 32,
                     .kv_heads = 8,
                     .queries = 64,
                     .keys = 8192,
                     .dim = 128,
                     .stored = kept.type});
  }
}

// One token through a layer of model 2048: multi-head, grouped and multi-query.
void add_steps(std::vector<Case>& cases) {
  for (const std::int64_t kv_heads : {16, 4, 1})
    cases.push_back({.role = Role::step, .heads = 16, .kv_heads = kv_heads, .keys = 8192, .dim = 128});
}

void add_layer(std::vector<Case>& cases) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    cases.push_back(twelve_heads(Role::layer, 6));
    cases.back().dtype = dtype;
  }
  // 2048 rows as 256 sequences of 8, in few heads: little attention between the projections, but enough that
  // queries and keys are checked.
  Case projection{
      .role = Role::projection, .batch = 256, .heads = 3, .kv_heads = 3, .queries = 8, .keys = 8, .dim = 256};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    projection.dtype = dtype;
    cases.push_back(projection);
  }
  for (const DType dtype : {DType::f32, DType::bf16})
    cases.push_back({.role = Role::projection, .dtype = dtype, .heads = 32, .kv_heads = 32, .dim = 128});
}

// The shapes of prefill that training has.
void add_backward(std::vector<Case>& cases) {
  const Case shapes[] = {
      {.role = Role::backward, .heads = 12, .kv_heads = 12, .queries = 1024, .keys = 1024, .dim = 64},
      {.role = Role::backward,
       .heads = 32,
       .kv_heads = 8,
       .queries = 2048,
       .keys = 2048,
       .dim = 128,
       .between = Between::causal},
  };
  for (Case shape : shapes)
    for (const DType dtype : dtypes) {
      shape.dtype = dtype;
      cases.push_back(shape);
    }
}

}  // namespace

std::vector<Case> cases_of(Suite suite, Size size) {
  std::vector<Case> cases;
  const auto wants = [&](Suite asked) { return suite == asked || suite == Suite::all; };
  if (wants(Suite::heads)) add_heads(cases);
  if (wants(Suite::prefill)) add_prefill(cases, size);
  if (wants(Suite::decode)) {
    add_decode(cases);
    add_caches(cases);
    add_steps(cases);
  }
  if (wants(Suite::layer)) add_layer(cases);
  if (wants(Suite::backward)) add_backward(cases);
  // A layer may be in two suites.
  std::vector<Case> once;
  for (const Case& c : cases)
    if (std::none_of(once.begin(), once.end(), [&](const Case& o) { return o.name() == c.name(); }))
      once.push_back(c);
  return once;
}

}  // namespace heed::tool
