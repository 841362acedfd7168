// SPDX-License-Identifier: Apache-2.0
#include "layer/model_fields.hpp"

#include <cmath>
#include <limits>

namespace heed::layer {
namespace {

constexpr double most = std::numeric_limits<std::int32_t>::max();

}  // namespace

Error ModelFields::error(const std::string& name, const std::string& what, Error::Code code) const {
  return {code, subject_ + name + ": " + what};
}

const files::Json* ModelFields::find(std::string_view name) const {
  const files::Json* found = object_->find(name);
  return found && !found->is_null() ? found : nullptr;
}

const files::Json& ModelFields::need(const char* name) const {
  if (const files::Json* found = find(name)) return *found;
  throw error(name, "missing");
}

bool ModelFields::says_null(const char* name) const {
  const files::Json* found = object_->find(name);
  return found && found->is_null();
}

bool ModelFields::has(std::string_view name) const { return find(name) != nullptr; }

std::optional<std::int64_t> ModelFields::find_integer(const char* name) const {
  const files::Json* found = find(name);
  if (!found) return {};
  const auto* number = found->as<double>();
  if (!number || !(*number >= 1 && *number <= most) || *number != std::floor(*number))
    throw error(name, describe(*found) + " is not a whole number in [1, 2147483647]");
  return static_cast<std::int64_t>(*number);
}

std::int64_t ModelFields::integer(const char* name) const {
  need(name);
  return *find_integer(name);
}

std::optional<double> ModelFields::find_real(const char* name) const {
  const files::Json* found = find(name);
  if (!found) return {};
  const auto* number = found->as<double>();
  if (!number || !std::isfinite(static_cast<float>(*number)))
    throw error(name, describe(*found) + " is not a number of 32 bits");
  return *number;
}

std::optional<float> ModelFields::find_number(const char* name) const {
  const std::optional<double> found = find_real(name);
  return found ? std::optional(static_cast<float>(*found)) : std::nullopt;
}

float ModelFields::number(const char* name) const {
  need(name);
  return *find_number(name);
}

std::vector<float> ModelFields::numbers(const char* name) const {
  const auto* list = need(name).as<files::Json::List>();
  if (!list) throw error(name, describe(need(name)) + " is not a list of numbers");
  std::vector<float> numbers;
  for (const files::Json& item : *list) {
    const auto* number = item.as<double>();
    if (!number) throw error(name, describe(item) + " in it is not a number");
    numbers.push_back(static_cast<float>(*number));
  }
  return numbers;
}

bool ModelFields::truth(const char* name, bool otherwise) const {
  const files::Json* found = find(name);
  if (!found) return otherwise;
  const auto* truth = found->as<bool>();
  if (!truth) throw error(name, describe(*found) + " is neither true nor false");
  return *truth;
}

std::optional<std::string> ModelFields::find_text(const char* name) const {
  const files::Json* found = find(name);
  if (!found) return {};
  const auto* text = found->as<std::string>();
  if (!text) throw error(name, describe(*found) + " is not a string");
  return *text;
}

std::string ModelFields::text(const char* name) const {
  need(name);
  return *find_text(name);
}

std::optional<ModelFields> ModelFields::find_object(const char* name) const {
  const files::Json* found = find(name);
  if (!found) return {};
  if (!found->as<files::Json::Object>()) throw error(name, describe(*found) + " is not an object");
  return ModelFields(*found, subject_ + name + ".");
}

}  // namespace heed::layer
