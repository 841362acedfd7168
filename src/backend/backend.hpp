// SPDX-License-Identifier: Apache-2.0
// What a device does for the rest of the library: it attends, projects, rotates, allocates, copies and
// merges. Arguments were checked, and lie in the device's memory where nothing else is said.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/layout.hpp"
#include "heed/attention.hpp"
#include "heed/cache.hpp"
#include "heed/rotary.hpp"
#include "refusal/refusal.hpp"

namespace heed::problem {
struct Problem;
struct GradientProblem;
struct RepairMarks;
}  // namespace heed::problem

namespace heed {
using problem::GradientProblem, problem::Problem, problem::RepairMarks;
}

namespace heed::backend {

// Attention whose keys come in stretches, in order. Each is read before add() returns.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void add(const View& k, const View& v) = 0;
  virtual bool finish() = 0;  // writes the outputs; returns whether a number left the range of f32 (S13)
};

// How the tokens of a cache's sequences are spread over ranks: chunk n of a sequence is rank n % ranks',
// after the chunks that rank has already.
struct Spread {
  static constexpr std::int64_t chunk_tokens = 1024;
  int rank = 0, ranks = 1;
};

// Attention of a few rows over such a cache. Each rank leaves the states of its own chunks, those of the rows
// that share a KV head are merged by one of them, and all write the rows from what was merged.
class SpreadDecode {
 public:
  virtual ~SpreadDecode() = default;
  virtual std::int64_t floats(int of, int merged_by) const = 0;  // that a rank's states take
  virtual std::int64_t floats_merged_by(int rank) const = 0;     // what it makes of all that it merges
  // Those of this rank that rank r merges begin at states[r].
  virtual void attend(std::span<float* const> states) = 0;
  // Those of rank r for this one begin at states[r].
  virtual void merge(std::span<const float* const> states, float* merged) = 0;
  // What rank r merged begins at merged[r]. Returns whether a number left the range of f32 (S13).
  virtual bool finish(std::span<const float* const> merged) = 0;
};

enum class Work : std::uint8_t { attention, backward, stream, spread };

// One way to compute attention, or its gradients: a kernel does one kind of work, or more, and has the entry
// points for it.
struct Kernel {
  std::string name{};                               // backend.role.target
  Device device = Device::cpu;                      // whose memory it reads and writes
  std::function<Reason()> unavailable{};            // why this machine cannot run it
  std::function<Reason(const Problem&)> refuses{};  // why it does not take this problem

  // Returns whether rows need repair, which the CPU does in its memory (S13).
  std::function<bool(const Problem&)> attend{};
  std::function<Reason(const GradientProblem&)> refuses_backward{};
  std::function<RepairMarks(const GradientProblem&)> backward{};
  // The problem's k and v have extents and no memory; it must outlive the stream.
  std::function<std::unique_ptr<Stream>(const Problem&)> begin_stream{};
  // The problem's sequences have the lengths of the whole, its cache holds a rank's part. It must outlive
  // what is begun.
  std::function<std::unique_ptr<SpreadDecode>(const Problem&, const Spread&)> begin_spread{};
};

struct GiveBack {
  void (*give_back)(void*, std::size_t bytes) noexcept = nullptr;
  std::size_t bytes = 0;
  void operator()(void* memory) const noexcept { give_back(memory, bytes); }
};
using Memory = std::unique_ptr<void, GiveBack>;

// One linear map of the layer, y = x * W^T + b, over a weight matrix packed once.
class Projection {
 public:
  virtual ~Projection() = default;

  // x is (batch, heads, length, dim) with heads * dim as wide as the matrix: row (b, t) is the concatenation
  // of its heads. y likewise, so splitting and concatenating heads is only a choice of strides. Any dtype,
  // any strides; the sum is f32 FMA chains over x's row, or what matrix instructions make of 16 bits (O3),
  // then the bias, then one rounding to y's dtype.
  virtual void operator()(const View& x, const MutableView& y) const = 0;
  // Whether matrix instructions multiply the matrix with an x of this type, which is its own and of 16 bits.
  virtual bool has_matrix_instructions_for(DType /*x*/) const { return false; }
};

// What it makes of an x.
struct Projected {
  const Projection& by;
  View x;
  MutableView y;
};

using cache::PageLayout, cache::Side, cache::TokenRun;

// One side of some pages.
struct DeviceSide {
  const PageLayout& layout;
  CacheType type;
  Side side;
};

// An array of the device's that goes when this does, after what was launched on it.
struct DeviceArray {
  std::shared_ptr<void> memory;
  MutableView view;
};

struct NotFinite {
  std::int64_t head = 0, token = -1;  // -1: all are finite
};

// Pages in the memory of a device that is not the CPU, and what is done there to the tokens they hold: in the
// order of calls, without waiting where nothing comes back.
class DevicePages {
 public:
  virtual ~DevicePages() = default;

  virtual unsigned char* memory() const = 0;

  // Refuses a view in the memory of another device of the kind.
  virtual void check_place(const char* name, const View&) const = 0;
  // What store_tokens() and fetch_token() of cache/store.hpp do, for all heads of these runs.
  virtual void store(const DeviceSide&, const View& from, std::span<const TokenRun>) const = 0;
  virtual void fetch(const DeviceSide&, const MutableView& into, std::span<const TokenRun>) const = 0;
  // The first of `count` tokens of batch entry b that is not finite. Waits.
  virtual NotFinite find_not_finite(const View&, std::int64_t b, std::int64_t count) const = 0;

  // An array beside the pages, packed.
  virtual DeviceArray make(const Shape&, DType) const = 0;

  // Bytes of pages: within the device, from the CPU's memory, and to it. The last two wait.
  virtual void copy(const unsigned char* from, unsigned char* into, std::int64_t bytes) const = 0;
  virtual void send(const unsigned char* from, unsigned char* into, std::int64_t bytes) const = 0;
  virtual void bring(const unsigned char* from, unsigned char* into, std::int64_t bytes) const = 0;
  virtual void clear(unsigned char* at, std::int64_t bytes) const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const char* const name;  // as its kernels begin
  const Device device;
  const std::vector<Kernel> kernels;  // in the order they are tried

  // w is (1, 1, out, in), row after row; bias has `out` entries or none. Both are the CPU's.
  virtual std::unique_ptr<const Projection> project(const View& w, std::span<const float> bias) const = 0;
  // The same over a matrix and a bias, (1, 1, 1, out), in the device's memory, of any strides. The matrix is
  // read where it lies, and outlives the projection.
  virtual std::unique_ptr<const Projection> project_lent(const View&, const Optional<View>& /*bias*/) const {
    throw refusal(Error::unsupported, name, ": has no projections over weights that are lent");
  }
  // By projections of this backend, none of which reads what another writes: neighbours of one x share the
  // reading of it.
  virtual void project_all(std::span<const Projected> all) const {
    for (const Projected& each : all) each.by(each.x, each.y);
  }

  // What the matrix and the bias of a projection gain from the gradient by its results: w(out, in) += sum
  // over rows of y(row, out) * x(row, in), bias(out) += sum of y(row, out). x and y are as a projection has
  // them; w is (1, 1, out, in), the bias (1, 1, 1, out) or has no data, both f32 and row after row. Rows run
  // in blocks of one length from the first, whoever computes them. A row of y that is all 0 leaves its x
  // unread.
  virtual void add_weight_gradient(const View& /*x*/, const View& /*y*/, const MutableView& /*w*/,
                                   const MutableView& /*bias*/) const {
    throw refusal(Error::unsupported, name, ": has no gradients of a projection");
  }

  // What heed::rotate() does, of tensors that differ in heads and strides only.
  virtual void rotate(std::span<const MutableView> alike, std::span<const std::int64_t> positions,
                      const Rotary&, std::span<const std::int64_t> lengths) const = 0;

  // Where there are several devices: as long as what it returns lives, this thread allocates on that of x.
  virtual std::shared_ptr<const void> stay_with(const char* /*argument*/, const View& /*x*/) const {
    return nullptr;
  }
  // At least so many bytes, on a 64-byte line, not initialised; those of calls that have ended are used
  // again. Throws std::bad_alloc.
  virtual Memory allocate(std::size_t bytes) const = 0;

  // So many bytes for the pages of caches; null: on the CPU, which reads them where they lie. Throws
  // std::bad_alloc.
  virtual std::unique_ptr<DevicePages> make_pages(std::int64_t /*bytes*/) const { return nullptr; }

  // Rounds to the dtype of `into`, which has the extents of `from`. Either may be the CPU's.
  virtual void copy(const View& from, const MutableView& into) const = 0;
  // into += from, rounded once.
  virtual void add(const View& /*from*/, const MutableView& /*into*/) const {
    throw refusal(Error::unsupported, name, ": does not add to gradients");
  }
  // `into` has one head: the average of those of `from`, summed in f32 in their order.
  virtual void average_heads(const View& from, const MutableView& into) const = 0;
  virtual void fill(const MutableView&, float) const = 0;

  // What heed::merge() does.
  virtual void merge(const Outputs& into, const Results& other) const = 0;

 protected:
  Backend(const char* its_name, Device its_device, std::vector<Kernel> its_kernels)
      : name(its_name), device(its_device), kernels(std::move(its_kernels)) {}
};

// The backends of this build, in the order their kernels are tried. Not const for the sake of tests.
std::vector<const Backend*>& backends();

// That of a device. Throws Error::device where this build has none: "q.device: cuda, but ...".
const Backend& backend_of(const char* name, Device);

}  // namespace heed::backend

namespace heed {
using backend::Backend, backend::backend_of, backend::backends, backend::Kernel, backend::Memory,
    backend::Projected, backend::Projection, backend::Spread, backend::SpreadDecode, backend::Stream,
    backend::Work;
}
