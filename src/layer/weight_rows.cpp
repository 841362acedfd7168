// SPDX-License-Identifier: Apache-2.0
#include "layer/weight_rows.hpp"

#include "files/safetensors.hpp"
#include "layer/config.hpp"
#include "layer/naming.hpp"
#include "refusal/refusal.hpp"

namespace heed::layer {
namespace {

std::array<Array*, 4> matrices(LayerWeights& w) { return {&w.w_q, &w.w_k, &w.w_v, &w.w_o}; }
std::array<std::optional<Array>*, 4> biases(LayerWeights& w) { return {&w.b_q, &w.b_k, &w.b_v, &w.b_o}; }

// (rows, columns) of the whole matrices.
std::array<std::array<std::int64_t, 2>, 4> extents_of(const LayerConfig& c) {
  return {{{query_width(c), c.model_dim},
           {key_width(c), *c.key_dim},
           {value_width(c), *c.value_dim},
           {c.model_dim, merged_width(c)}}};
}

// One array of a file that holds what is wanted from row `begin` on.
struct Stored {
  std::string name;
  std::int64_t begin = 0, rows = 0;  // of the array
};

class StoredLayer {
 public:
  StoredLayer(files::SafetensorsFile& file, const std::string& prefix, const LayerConfig& c)
      : file_(file), prefix_(prefix), extents_(extents_of(c)) {
    const Naming naming = naming_of(file.layout().arrays, prefix);
    names_ = naming == Naming::paper ? paper_names : naming == Naming::torch ? torch_names : llama_names;
    is_packed_ = naming == Naming::torch && file.has(prefix + packed_matrix);
    has_packed_bias_ = naming == Naming::torch;
  }

  Array matrix(std::size_t i, const Rows& rows) const {
    const bool is_packed = is_packed_ && i < 3;
    return read(stored(i, is_packed ? packed_matrix : names_.matrices[i], is_packed), rows, {extents_[i][1]});
  }
  std::optional<Array> bias(std::size_t i, const Rows& rows) const {
    const Stored from = stored(i, names_.biases[i], has_packed_bias_ && i < 3);
    return file_.has(from.name) ? std::optional(read(from, rows, {})) : std::nullopt;
  }

 private:
  // A packed array has Q over K over V.
  Stored stored(std::size_t i, const std::string& name, bool is_packed) const {
    const std::int64_t q = extents_[0][0], k = extents_[1][0], v = extents_[2][0];
    if (!is_packed) return {prefix_ + name, 0, extents_[i][0]};
    return {prefix_ + name, i == 0 ? 0 : i == 1 ? q : q + k, q + k + v};
  }

  Array read(const Stored& from, const Rows& rows, const std::vector<std::int64_t>& columns) const {
    if (!file_.has(from.name)) throw refusal(Error::value, file_.name(), ": ", from.name, " is missing");
    std::vector<std::int64_t> wanted{from.rows};
    wanted.insert(wanted.end(), columns.begin(), columns.end());
    const Array& whole = file_.layout().arrays.at(from.name);
    if (whole.shape != wanted)
      throw refusal(Error::shape, file_.name(), ": ", from.name, ".shape: ", written(whole.shape),
                    " is not that of the configuration: ", written(wanted));
    Array part = file_.read_rows(from.name, from.begin + rows.first, rows.count);
    check_array(from.name, part, wanted.size());
    return part;
  }

  files::SafetensorsFile& file_;
  const std::string& prefix_;
  const std::array<std::array<std::int64_t, 2>, 4> extents_;
  WeightNames names_{};
  bool is_packed_ = false, has_packed_bias_ = false;
};

}  // namespace

LayerWeights take_rows(const LayerWeights& whole, const LayerConfig& c, const WeightRows& rows) {
  check_weights(whole, c);
  LayerWeights part;
  for (std::size_t i = 0; i < 4; ++i) {
    *matrices(part)[i] = rows_of(*matrices(whole)[i], rows[i].first, rows[i].count);
    if (const std::optional<Array>& bias = *biases(whole)[i])
      *biases(part)[i] = rows_of(*bias, rows[i].first, rows[i].count);
  }
  return part;
}

LayerWeights read_rows(const std::filesystem::path& path, const std::string& prefix, const LayerConfig& c,
                       const WeightRows& rows) {
  files::SafetensorsFile file{files::InputFile(path)};
  const StoredLayer stored(file, prefix, c);
  LayerWeights part;
  for (std::size_t i = 0; i < 4; ++i) {
    *matrices(part)[i] = stored.matrix(i, rows[i]);
    *biases(part)[i] = stored.bias(i, rows[i]);
  }
  return part;
}

void check_rows(const LayerWeights& part, const LayerConfig& c, const WeightRows& rows) {
  const WeightNames names;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::vector<std::int64_t> wanted{rows[i].count, extents_of(c)[i][1]};
    const Array& matrix = *matrices(part)[i];
    check_array(names.matrices[i], matrix, 2);
    if (matrix.shape != wanted)
      throw refusal(Error::shape, names.matrices[i], ".shape: ", written(matrix.shape),
                    " is not that of this rank's share: ", written(wanted));
    const std::optional<Array>& bias = *biases(part)[i];
    if (!bias) continue;
    check_array(names.biases[i], *bias, 1);
    if (bias->shape[0] != rows[i].count)
      throw refusal(Error::shape, names.biases[i], ".length: ", bias->shape[0], " is not ", names.matrices[i],
                    ".rows: ", rows[i].count);
  }
}

}  // namespace heed::layer
