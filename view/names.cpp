// SPDX-License-Identifier: Apache-2.0
// What a run and a layer must be to be shown.
#include "files/json.hpp"
#include "view/rows.hpp"

namespace HEED_NAMESPACE::view {
namespace {

constexpr std::size_t longest_token =
    4096;  // bytes; a page of prose in one cell is a mistake in the list of tokens

void check_text(const std::string& name, const std::string& text) {
  if (text.size() > longest_token)
    throw Error(Error::value, name + ": " + std::to_string(text.size()) + " bytes, at most " +
                                  std::to_string(longest_token) + " can be shown");
  if (!files::is_utf8(text))
    throw Error(Error::value, name + ": " + files::quote_briefly(text) + " is not UTF-8");
}

void check_tokens(const char* name, const std::vector<std::string>& tokens, std::int64_t wanted,
                  const char* what) {
  if (tokens.empty()) return;
  if (static_cast<std::int64_t>(tokens.size()) != wanted)
    throw Error(Error::shape, std::string(name) + ": " + std::to_string(tokens.size()) + " for " +
                                  std::to_string(wanted) + " " + what);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    check_text(std::string(name) + "[" + std::to_string(i) + "]", tokens[i]);
}

}  // namespace

void check_run(const Run& run) {
  if (run.queries < 1 || run.keys < 1)
    throw Error(Error::shape, "run: " + std::to_string(run.queries) + " queries and " +
                                  std::to_string(run.keys) + " keys; there must be at least one of each");
  check_text("name", run.name);
  check_tokens("query_tokens", run.query_tokens, run.queries, "queries");
  check_tokens("key_tokens", run.key_tokens, run.keys, "keys");
}

void check_layer(const Layer& layer) {
  check_text("name", layer.name);
  if (layer.heads < 1)
    throw Error(Error::shape, "heads: " + std::to_string(layer.heads) + ", there must be at least one");
  if (layer.kv_heads < 1 || layer.heads % layer.kv_heads != 0)
    throw Error(Error::shape, "kv_heads: " + std::to_string(layer.kv_heads) +
                                  " does not divide heads: " + std::to_string(layer.heads));
}

}  // namespace HEED_NAMESPACE::view
