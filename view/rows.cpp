// SPDX-License-Identifier: Apache-2.0
// See rows.hpp.
#include "view/rows.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "heed/half.hpp"
#include "heed/threads.hpp"

namespace HEED_NAMESPACE::view {
namespace {

// What a view has along each axis may lie anywhere; a row is gathered where it is not packed floats already.
class RowReader {
 public:
  explicit RowReader(const Rows& rows) : rows_(rows) {}

  std::span<const float> weights(std::int64_t head, std::int64_t row) {
    const View& view = rows_.weights;
    const auto keys = static_cast<std::size_t>(view.shape.dim);
    const std::int64_t at =
        along(head, view.shape.heads, view.stride.heads) + along(row, view.shape.length, view.stride.length);
    const std::int64_t step = view.shape.dim > 1 ? view.stride.dim : 1;
    const auto* floats = static_cast<const float*>(view.data) + at;
    if (view.dtype == DType::f32 && step == 1) return {floats, keys};
    row_.resize(keys);
    for (std::size_t j = 0; j < keys; ++j) {
      const std::int64_t place = at + static_cast<std::int64_t>(j) * step;
      if (view.dtype == DType::f32)
        row_[j] = static_cast<const float*>(view.data)[place];
      else if (view.dtype == DType::f64)
        row_[j] = static_cast<float>(static_cast<const double*>(view.data)[place]);
      else if (view.dtype == DType::f16)
        row_[j] = to_float(static_cast<const f16*>(view.data)[place]);
      else
        row_[j] = to_float(static_cast<const bf16*>(view.data)[place]);
    }
    return row_;
  }

  const bool* hidden(std::int64_t head, std::int64_t row) {
    if (!rows_.hidden) return nullptr;
    const BoolView& view = *rows_.hidden;
    const std::int64_t at =
        along(head, view.shape.heads, view.stride.heads) + along(row, view.shape.length, view.stride.length);
    if (view.shape.dim == rows_.weights.shape.dim && (view.stride.dim == 1 || view.shape.dim == 1))
      return view.data + at;
    hidden_.resize(static_cast<std::size_t>(rows_.weights.shape.dim));
    for (std::size_t j = 0; j < hidden_.size(); ++j)
      hidden_[j] =
          view.data[at + along(static_cast<std::int64_t>(j), view.shape.dim, view.stride.dim)] ? 1 : 0;
    return reinterpret_cast<const bool*>(hidden_.data());
  }

 private:
  static std::int64_t along(std::int64_t index, std::int64_t extent, std::int64_t stride) {
    return extent > 1 ? index * stride : 0;  // an extent of 1 broadcasts
  }
  const Rows& rows_;
  std::vector<float> row_{};
  std::vector<unsigned char> hidden_{};  // std::vector<bool> has no memory to point to
};

[[noreturn]] void refuse_extent(const char* name, const char* what, std::int64_t found, std::int64_t wanted) {
  throw Error(Error::shape, std::string(name) + ": " + std::to_string(found) + " " + what + ", not " +
                                std::to_string(wanted));
}

void check_broadcast(const char* what, std::int64_t found, std::int64_t wanted) {
  if (found != wanted && found != 1) refuse_extent("hidden", what, found, wanted);
}

// A weight that a mask hides was not computed under that mask. "": there is none in the row.
std::string hidden_weight(std::span<const float> row, const bool* hidden, std::size_t head,
                          std::int64_t query) {
  for (std::size_t j = 0; j < row.size(); ++j)
    if (hidden[j] && row[j] != 0)
      return "weights: " + std::to_string(row[j]) + " at head " + std::to_string(head) + ", query " +
             std::to_string(query) + ", key " + std::to_string(j) +
             " is hidden by the mask that came with it";
  return "";
}

}  // namespace

void check_rows(const Rows& rows, const Place& place) {
  const Shape& shape = rows.weights.shape;
  if (rows.weights.device != Device::cpu) throw Error(Error::device, "weights: lie on another device");
  if (shape.batch != 1) refuse_extent("weights", "batch entries", shape.batch, 1);
  if (shape.heads != place.heads) refuse_extent("weights", "heads", shape.heads, place.heads);
  if (shape.dim != place.keys) refuse_extent("weights", "keys", shape.dim, place.keys);
  if (shape.length > place.queries - place.first_row)
    throw Error(Error::shape, "weights: " + std::to_string(shape.length) + " rows are more than the " +
                                  std::to_string(place.queries - place.first_row) + " that are left of " +
                                  std::to_string(place.queries));
  if (rows.hidden) {
    check_broadcast("batch entries", rows.hidden->shape.batch, 1);
    check_broadcast("heads", rows.hidden->shape.heads, shape.heads);
    check_broadcast("rows", rows.hidden->shape.length, shape.length);
    check_broadcast("keys", rows.hidden->shape.dim, shape.dim);
    check_view("hidden", *rows.hidden);
  }
  check_view("weights", rows.weights);
  std::vector<std::string> refused(static_cast<std::size_t>(shape.heads));
  on_all_threads(refused.size(), [&](std::size_t head) {
    RowReader reader(rows);
    for (std::int64_t i = 0; i < shape.length && refused[head].empty(); ++i) {
      const std::span<const float> row = reader.weights(static_cast<std::int64_t>(head), i);
      const auto negative = std::find_if(row.begin(), row.end(), [](float w) { return w < 0; });
      if (negative != row.end())
        refused[head] = "weights: " + std::to_string(*negative) + " at head " + std::to_string(head) +
                        ", query " + std::to_string(place.first_row + i) + ", key " +
                        std::to_string(negative - row.begin()) +
                        " is negative, which no weight of attention is";
      else if (const bool* const hidden = reader.hidden(static_cast<std::int64_t>(head), i))
        refused[head] = hidden_weight(row, hidden, head, place.first_row + i);
    }
  });
  for (const std::string& sentence : refused)
    if (!sentence.empty()) throw Error(Error::value, sentence);
}

bool looks_causal(const View& weights) {
  check_view("weights", weights);
  const std::int64_t length = weights.shape.length;
  if (length != weights.shape.dim || length < 2) return false;
  const Rows rows{.weights = weights};
  RowReader reader(rows);
  const auto is_not_zero = [](float w) { return w != 0; };
  bool is_any = false;  // an array of zeros has no form
  for (std::int64_t h = 0; h < weights.shape.heads; ++h)
    for (std::int64_t i = 0; i < length; ++i) {
      const std::span<const float> row = reader.weights(h, i);
      const std::span<const float> later = row.subspan(static_cast<std::size_t>(i + 1));
      if (std::any_of(later.begin(), later.end(), is_not_zero)) return false;
      is_any = is_any || std::any_of(row.begin(), row.end(), is_not_zero);
    }
  return is_any;
}

void for_every_row(const Rows& rows, const UseRow& use) {
  const Shape& shape = rows.weights.shape;
  on_all_threads(static_cast<std::size_t>(shape.heads), [&](std::size_t head) {
    RowReader reader(rows);
    const auto h = static_cast<std::int64_t>(head);
    for (std::int64_t i = 0; i < shape.length; ++i) {
      const bool* const hidden = reader.hidden(h, i);
      use(head, reader.weights(h, i), hidden);
    }
  });
}

void on_all_threads(std::size_t tasks, const std::function<void(std::size_t)>& task) {
  const std::size_t threads = std::min(tasks, static_cast<std::size_t>(std::max(1, num_threads())));
  std::atomic<std::size_t> next{0};
  std::exception_ptr problem;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < tasks; i = next++) task(i);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      problem = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  for (std::size_t n = 1; n < threads; ++n) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (problem) std::rethrow_exception(problem);
}

}  // namespace HEED_NAMESPACE::view
