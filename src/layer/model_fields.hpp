// SPDX-License-Identifier: Apache-2.0
// The values of a config.json that is not believed yet: each is asked for by name and kind, and refused with
// a sentence that has the file, the name and what was found.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/json.hpp"

namespace heed::layer {

class ModelFields {
 public:
  // `subject` begins every sentence: "llama/config.json: rope_parameters."
  ModelFields(const files::Json& object, std::string subject)
      : object_(&object), subject_(std::move(subject)) {}

  bool has(std::string_view name) const;                             // and it is not null
  bool says_null(const char* name) const;                            // has it, as null
  std::optional<std::int64_t> find_integer(const char* name) const;  // at least 1
  std::int64_t integer(const char* name) const;
  std::optional<double> find_real(const char* name) const;   // finite as a float
  std::optional<float> find_number(const char* name) const;  // the same, rounded
  float number(const char* name) const;
  std::vector<float> numbers(const char* name) const;
  bool truth(const char* name, bool otherwise) const;
  std::optional<std::string> find_text(const char* name) const;
  std::string text(const char* name) const;
  std::optional<ModelFields> find_object(const char* name) const;
  const files::Json* find(std::string_view name) const;  // nullptr where it is missing or null
  const std::vector<std::string>& names() const { return object_->as<files::Json::Object>()->keys; }

  // "llama/config.json: rope_parameters.factor: " and what is wrong with it
  [[nodiscard]] Error error(const std::string& name, const std::string& what,
                            Error::Code code = Error::file) const;

 private:
  const files::Json& need(const char* name) const;

  const files::Json* object_;
  std::string subject_;
};

}  // namespace heed::layer
