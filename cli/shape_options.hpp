// SPDX-License-Identifier: Apache-2.0
// The options that run, check and explain share: the problem's extents, its masks, and how to compute it.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "heed/attention.hpp"
#include "heed/tensor.hpp"

namespace CLI {
class App;
}

namespace heed::tool {

// What the user said; what was not said may still come from a file.
struct ShapeOptions {
  std::int64_t default_length = 1024;
  bool takes_f64 = true;  // a layer does not
  std::optional<std::int64_t> batch{}, length{}, context_length{}, model_dim{}, heads{}, kv_heads{},
      head_dim{};
  bool causal = false;
  std::optional<Window> window{};
  std::optional<Align> align{};
  std::optional<std::int64_t> front{};
  std::string tokens{}, document{}, key_lengths{}, keep{}, hide{}, tree{};
  std::optional<std::int64_t> pad_id{};
  Options scores{};  // what needs no file: numbers, the head map, dropout
  std::string bias{}, sink{};
  std::optional<std::string> alibi{};  // its slopes; "": the paper's
  DType dtype = DType::f32;
  std::uint64_t seed = 0;
  std::string kernel{};
  std::optional<int> threads{};
  std::map<std::string, std::string> found_in{};  // the file that said it, for a flag that nobody did

  void add_to(CLI::App&);
  void add_band(CLI::App&);  // --causal, --window and --align alone
  void use_threads() const;  // set_num_threads(), if the user named a number

 private:
  void add_extents(CLI::App&);
  void add_masks(CLI::App&);
  void add_scores(CLI::App&);
};

// Every extent known, positive where it must be, heads dividing what they must divide.
struct Extents {
  std::int64_t batch = 0, queries = 0, keys = 0, model_dim = 0, heads = 0, kv_heads = 0, head_dim = 0;
};
Extents resolve(const ShapeOptions&);

// The option takes what a file says; a user, or another file, that said something else is refused.
struct Finding {
  std::string flag;    // "--length"
  std::int64_t found;  // in the file
  std::string where;   // "--input"
};
void agree(ShapeOptions&, std::optional<std::int64_t> ShapeOptions::* option, const Finding&);

// The flags that make this very problem again, for a line that reproduces it.
std::string command_line(const ShapeOptions&, const Extents&);

}  // namespace heed::tool
