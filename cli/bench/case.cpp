// SPDX-License-Identifier: Apache-2.0
// See case.hpp.
#include "bench/case.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <optional>
#include <sstream>

#include "heed/error.hpp"

namespace heed::tool {
namespace {

constexpr const char* case_list =
#include "bench/cases.txt"
    ;

constexpr std::array roles{Role::prefill,    Role::decode, Role::backward, Role::layer,
                           Role::projection, Role::cache,  Role::step};
constexpr std::array case_suites{Suite::heads, Suite::prefill,  Suite::decode,
                                 Suite::layer, Suite::backward, Suite::lengths};
constexpr std::array betweens{Between::causal, Between::bias, Between::keep};
constexpr std::array dtypes{DType::f32, DType::bf16, DType::f16};
constexpr std::array cache_types{CacheType::f32, CacheType::bf16, CacheType::f16, CacheType::int8};

template <class Choices>
auto named(const Choices& choices, const std::string& word) -> std::optional<typename Choices::value_type> {
  const auto found = std::ranges::find_if(choices, [&](auto choice) { return word == name_of(choice); });
  if (found == choices.end()) return {};
  return *found;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// "1x32x8": no number is 0.
std::vector<std::int64_t> numbers_of(const std::string& text) {
  std::vector<std::int64_t> numbers;
  for (const std::string& part : split(text, 'x')) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error != std::errc() || end != part.data() + part.size() || number < 1) return {};
    numbers.push_back(number);
  }
  return numbers;
}

// A projection is one of the four of a layer. Its rows are sequences of up to 8 tokens in heads of up to 256
// dimensions: little attention between the four, but enough that queries and keys are checked.
void set_projection(Case& c, std::int64_t rows, std::int64_t width) {
  c.dim = std::gcd(width, std::int64_t{256}), c.heads = c.kv_heads = width / c.dim;
  c.queries = c.keys = std::gcd(rows, std::int64_t{8}), c.batch = rows / c.queries;
}

// What follows the extents: false where it means nothing.
bool set_detail(Case& c, const std::string& word) {
  if (const auto between = named(betweens, word)) return c.between = *between, true;
  if (!c.is_cached()) return false;
  if (word == "mixed") return c.is_mixed = true;
  const std::vector<std::int64_t> page = numbers_of(word.substr(std::min(word.size(), std::size_t{5})));
  if (!word.starts_with("paged") || page.size() != 1) return false;
  return c.page_size = page[0], true;
}

// Why there is no such case, or "".
std::string fault_of(const Case& c) {
  const std::string role = name_of(c.role);
  if (c.heads % c.kv_heads != 0)
    return fmt::format("{} KV heads do not divide {} heads", c.kv_heads, c.heads);
  if (c.role == Role::decode || c.role == Role::step) {
    if (c.queries != 1) return role + " has one query";
  } else if (c.role != Role::cache && c.queries != c.keys) {
    return role + " has as many queries as keys";
  }
  if (c.role == Role::step && (c.batch != 1 || c.stored != CacheType::f32))
    return "step is of one sequence, in f32";
  if (c.is_cached() && c.length_of(0) < c.queries) return "a sequence has fewer keys than queries";
  const bool may_be = c.role == Role::prefill || (c.role == Role::backward && c.between == Between::causal);
  if (c.between != Between::nothing && !may_be)
    return fmt::format("{} has no mask or bias of that kind", role);
  return "";
}

double product(std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  return 2 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth);
}

double attention_operations(const Case& c) {
  const std::int64_t pairs =
      c.between == Between::causal ? c.queries * (c.queries + 1) / 2 : c.queries * c.keys;
  return 2 * product(c.batch * c.heads, pairs, c.dim);  // q k^T, and the weights times v
}

}  // namespace

const char* name_of(Role role) {
  switch (role) {
    case Role::prefill:
      return "prefill";
    case Role::decode:
      return "decode";
    case Role::backward:
      return "backward";
    case Role::layer:
      return "layer";
    case Role::projection:
      return "projection";
    case Role::cache:
      return "cache";
    case Role::step:
      return "step";
  }
  return "";
}

const char* name_of(Between between) {
  switch (between) {
    case Between::nothing:
      return "";
    case Between::causal:
      return "causal";
    case Between::bias:
      return "bias";
    case Between::keep:
      return "keep";
  }
  return "";
}

Case Case::parse(const std::string& name) {
  const Error unknown(Error::value, fmt::format("{}: not the name of a case", name));
  const std::vector<std::string> words = split(name, '/');
  if (words.size() < 3) throw unknown;
  const std::optional<Role> role = named(roles, words[0]);
  const std::optional<DType> dtype = named(dtypes, words[1]);
  const std::optional<CacheType> stored = named(cache_types, words[1]);
  const std::vector<std::int64_t> n = numbers_of(words[2]);
  if (!role || !stored || n.size() != (role == Role::projection ? 3u : 6u)) throw unknown;
  Case c{.role = *role, .dtype = dtype.value_or(DType::f32)};
  if (!c.is_cached() && !dtype) throw unknown;
  if (c.is_cached()) c.stored = *stored;
  if (role == Role::projection)
    set_projection(c, n[0], n[1]);
  else
    c.batch = n[0], c.heads = n[1], c.kv_heads = n[2], c.queries = n[3], c.keys = n[4], c.dim = n[5];
  for (std::size_t w = 3; w < words.size(); ++w)
    if (!set_detail(c, words[w])) throw unknown;
  return c;
}

Case Case::parse_own(const std::string& name) {
  Case c;
  try {
    c = parse(name);
  } catch (const Error&) {
  }
  if (c.name() != name)
    throw Error(Error::value,
                fmt::format("'{}' is no case; say ROLE/TYPE/BATCHxHEADSxKV_HEADSxQUERIESxKEYSxDIM, such as "
                            "prefill/bf16/1x32x8x2048x2048x128/causal",
                            name));
  const std::string fault = fault_of(c);
  if (!fault.empty()) throw Error(Error::value, fmt::format("'{}': {}", name, fault));
  return c;
}

// Evenly from short to long: with 64 sequences of 512 tokens on average, 8, 24, 40, ..., 1016.
std::int64_t Case::length_of(std::int64_t sequence) const {
  return is_mixed ? (2 * sequence + 1) * keys / batch : keys;
}

KvCacheConfig Case::cache_config() const {
  KvCacheConfig config{
      .batch = batch, .kv_heads = kv_heads, .capacity = length_of(batch - 1), .dim = dim, .type = stored};
  if (page_size > 0) config.page_size = page_size;
  return config;
}

std::string Case::name() const {
  const std::string start =
      fmt::format("{}/{}/", name_of(role), is_cached() ? heed::name_of(stored) : heed::name_of(dtype));
  if (role == Role::projection)
    return start + fmt::format("{}x{}x{}", batch * queries, model_dim(), model_dim());
  return start + fmt::format("{}x{}x{}x{}x{}x{}", batch, heads, kv_heads, queries, keys, dim) +
         (between == Between::nothing ? "" : fmt::format("/{}", name_of(between))) +
         (page_size > 0 ? fmt::format("/paged{}", page_size) : "") + (is_mixed ? "/mixed" : "");
}

double Case::operations() const {
  if (role == Role::projection) return product(batch * queries, model_dim(), model_dim());
  if (role == Role::backward) return 2.5 * attention_operations(*this);  // five products for two
  if (role != Role::layer) return attention_operations(*this);
  const std::int64_t rows = batch * queries;
  return attention_operations(*this) + 2 * product(rows, model_dim(), model_dim()) +
         2 * product(rows, kv_heads * dim, model_dim());
}

std::int64_t Case::kv_bytes_per_token() const {
  if (!is_cached()) return 2 * kv_heads * dim * static_cast<std::int64_t>(bytes_of(dtype));
  const std::int64_t element = stored == CacheType::int8 ? 1 : stored == CacheType::f32 ? 4 : 2;
  const std::int64_t scales = stored == CacheType::int8 ? 2 * 4 : 0;
  return kv_heads * (2 * dim * element + scales);
}

double Case::kv_bytes() const {
  return static_cast<double>(batch * keys) * static_cast<double>(kv_bytes_per_token());
}

double Case::step_bytes() const {
  const auto kv_rows = static_cast<double>(2 * kv_heads * dim * model_dim());
  return 2 * weight_bytes() + kv_rows * sizeof(float) + kv_bytes();
}

double Case::weight_bytes() const {
  return static_cast<double>(model_dim() * model_dim()) * static_cast<double>(bytes_of(dtype));
}

const char* name_of(Suite suite) {
  constexpr std::array names{"heads",   "prefill", "decode", "layer", "backward",
                             "lengths", "all",     "limits", "ranks"};
  return names[static_cast<std::size_t>(suite)];
}

std::vector<Case> cases_of(Suite suite, Size size) {
  const auto is_wanted = [&](const std::string& heading) {
    return std::ranges::any_of(case_suites, [&](Suite each) {
      return heading == fmt::format("[{}]", name_of(each)) && (suite == each || suite == Suite::all);
    });
  };
  std::vector<Case> cases;
  bool is_inside = false;
  for (const std::string& line : split(case_list, '\n')) {
    if (line.starts_with('[')) is_inside = is_wanted(line);
    if (!is_inside || line.empty() || line.starts_with('#') || line.starts_with('[')) continue;
    Case c = Case::parse(line);
    if (size == Size::quick && c.role == Role::prefill && c.queries == 4096) c.queries = c.keys = 2048;
    if (std::ranges::find(cases, c) == cases.end()) cases.push_back(c);  // a case may be in two suites
  }
  return cases;
}

}  // namespace heed::tool
