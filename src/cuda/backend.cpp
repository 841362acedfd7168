// SPDX-License-Identifier: Apache-2.0
// CUDA as a backend: what each kernel takes, the lists that a call brings to the device, and its launch.
#include "cuda/backend.hpp"

#include <cuda_runtime_api.h>

#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/backward/backward.hpp"
#include "cuda/prefill/copied_rows.hpp"
#include "cuda/prefill/plan.hpp"
#include "cuda/projection/projection.hpp"
#include "cuda/runtime/arrays.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/workspace.hpp"
#include "refusal/refusal.hpp"

namespace heed::cuda {
namespace {

// Lists that kernels read, one after the other as they will lie on the device.
class Lists {
 public:
  explicit Lists(std::byte* on_device) : device_(on_device) {}

  const void* add(const void* from, std::size_t bytes) {
    const std::size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + bytes);
    if (bytes > 0) std::memcpy(bytes_.data() + at, from, bytes);
    return device_ + at;
  }
  template <class T>
  const T* add(std::span<const T> list) {
    return static_cast<const T*>(add(list.data(), list.size_bytes()));
  }
  template <class T>
  const T* add(const std::vector<T>& list) {
    return add(std::span<const T>(list));
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::byte* device_;
  std::vector<std::byte> bytes_{};
};

// The pages of a cached call's sequences, one after the other, as distances from the first in memory.
class PageDistances {
 public:
  explicit PageDistances(const LoweredCall& of) {
    for (const cache::PagedSequence& s : of.problem.cached)
      for (const unsigned char* page : table_of(of.call, s))
        if (!first_ || page < first_) first_ = page;
    for (const cache::PagedSequence& s : of.problem.cached)
      for (const unsigned char* page : table_of(of.call, s)) add((page - first_) / Upload::line);
  }
  static std::span<const unsigned char* const> table_of(const Call& c, const cache::PagedSequence& s) {
    return {s.table, static_cast<std::size_t>((s.length + c.layout.page_size - 1) / c.layout.page_size)};
  }
  std::int64_t pointer_bytes() const { return cuda::pointer_bytes(std::ssize(lines_)); }
  Upload with(const std::vector<std::byte>& bytes) const {
    return {bytes.data(), std::ssize(bytes), lines_.data(), std::ssize(lines_), first_};
  }

 private:
  void add(std::int64_t lines) {
    if (lines > std::numeric_limits<std::uint32_t>::max())
      throw refusal(Error::capacity, "cache: its pages lie 256 GB apart, or more");
    lines_.push_back(static_cast<std::uint32_t>(lines));
  }

  const unsigned char* first_ = nullptr;
  std::vector<std::uint32_t> lines_{};
};

// The general kernel, whichever calls it is asked for.
bool is_general(Role role) { return role == Role::general || role == Role::split; }

// A call as a kernel takes it. Hopper's matrix units have documents as sequences, where they can be. Prefill
// has rows on 16 bytes: launches before it put those of a cache, and others that do not lie so, into the
// workspace.
class RoleCall {
 public:
  explicit RoleCall(const LoweredCall& of) : lowered(of) {}
  RoleCall(Role role, const LoweredCall& of) : lowered(of) {
    if (role == Role::decode) extents.mask = packed_mask(call, decode_mask_keys);
    if (role != Role::prefill) return;
    if (call.cached)
      lay_out_cache();
    else
      pack(PackedDocuments(of));
    copies = CopiedRows(call, extents);
    extents.mask = packed_mask(call, prefill_tile_keys(call));
  }

  // Documents become sequences, unless there are none.
  void pack(PackedDocuments documents) {
    if (documents.sequences.empty()) return;
    call = documents.of(call), extents = {documents.rows, documents.rows};
    own_ = std::move(documents.sequences);
  }

  std::span<const Sequence> sequences() const {
    return own_.empty() ? std::span(lowered.problem.sequences) : std::span<const Sequence>(own_);
  }

  const LoweredCall& lowered;
  Call call = lowered.call;
  Extents extents{lowered.query_rows, lowered.key_rows};
  CopiedRows copies{};

 private:
  // Rows of all sequences one after the other where they differ, else of each by itself.
  void lay_out_cache() {
    own_.assign(lowered.problem.sequences.begin(), lowered.problem.sequences.end());
    std::int64_t rows = 0;
    for (Sequence& s : own_) {
      const std::int64_t own_rows = cache::PageLayout::whole(s.keys, cache::PageLayout::tile);
      s.first_key = call.sequences ? rows : 0;
      rows = call.sequences ? rows + own_rows : own_rows;
    }
    if (call.sequences) call.sequences = own_.data();
    const auto lay_out = [&](Tensor& t, std::int64_t dim) {
      t.type = call.layout.is_quantized ? call.q.type : t.type;
      t.stride = {call.sequences ? 0 : call.kv_heads * rows * dim, rows * dim, dim, 1};
    };
    lay_out(call.k, call.dim), lay_out(call.v, call.value_dim);
    extents.key_rows = rows;
    if (may_read_pages(call)) read_pages();
  }

  // The copy engine numbers lines from the first page in memory.
  void read_pages() {
    const unsigned char *first = nullptr, *last = nullptr;
    for (const cache::PagedSequence& s : lowered.problem.cached) {
      if (!s.table) return;  // tokens are to come
      for (const unsigned char* page : PageDistances::table_of(call, s)) {
        if (!first || page < first) first = page;
        if (page > last) last = page;
      }
    }
    const std::int64_t lines = (last - first + call.layout.page_bytes()) / Upload::line;
    if (!first || lines > std::numeric_limits<int>::max()) return;
    call.k.data = first, extents.key_rows = lines;
  }

  std::vector<Sequence> own_{};  // where they are not the problem's
};

// Of the sequences before each, and of all: tiles of a head's rows, and partial states of a KV head.
struct PrefillStarts {
  std::vector<int> tiles{0}, partials{0};

  explicit PrefillStarts(const RoleCall& of) {
    const std::int64_t rows = prefill_rows(of.call), group = of.call.group();
    for (const Sequence& s : of.sequences()) {
      const std::int64_t units = prefill_units(of.call, s),
                         states = units > 1 ? s.queries * group * units : 0;
      tiles.push_back(tiles.back() + static_cast<int>((s.queries + rows - 1) / rows * units));
      partials.push_back(partials.back() + static_cast<int>(states));
    }
  }
};

// How documents come to the device: a number for each key, or the first keys of those that are runs.
enum class Documents : std::uint8_t { numbers, runs };

// A call and the lists it points to, once they are on the device, behind its page tables.
struct Brought {
  Call call;
  PrefillTiles tiles{};
  PageDistances pages;
  Lists lists;

  Brought(Role role, const RoleCall& of, std::byte* to)
      : Brought(is_general(role) ? Documents::runs : Documents::numbers, of, to) {
    if (role != Role::prefill) return;
    const PrefillStarts starts(of);
    tiles.count = starts.tiles.back();
    if (!call.sequences) return;
    tiles.starts = lists.add(starts.tiles);
    if (starts.partials.back() > 0) tiles.partial_starts = lists.add(starts.partials);
  }

  Brought(Documents documents, const RoleCall& of, std::byte* to)
      : call(of.call), pages(of.lowered), lists(to + pages.pointer_bytes()) {
    const LoweredCall& lowered = of.lowered;
    if (call.sequences) call.sequences = lists.add(of.sequences());
    if (call.gap_count > 0) call.gaps = lists.add(std::span<const Gap>(lowered.problem.gaps));
    if (call.mask_count > 0) bring_masks(lowered);
    if (call.alibi.of_heads) call.alibi.of_heads = lists.add(lowered.problem.options.alibi->slopes);
    if (documents == Documents::runs && !lowered.run_starts.empty())
      bring_runs(lowered);
    else if (call.document_count > 0)
      bring_documents(lowered);
    if (call.cached) bring_tables(lowered, to);
  }

  std::int64_t bytes() const { return pages.pointer_bytes() + std::ssize(lists.bytes()); }
  Upload upload() const { return pages.with(lists.bytes()); }

 private:
  void bring_masks(const LoweredCall& lowered) {
    std::vector<BoolTensor> moved(lowered.lowered.masks.begin(), lowered.lowered.masks.end());
    for (std::size_t n = 0; n < moved.size(); ++n)
      if (const auto bytes = static_cast<std::size_t>(lowered.masks_to_bring[n]); bytes > 0)
        moved[n].where.data = lists.add(moved[n].where.data, bytes);
    call.masks = lists.add(moved);
  }
  void bring_documents(const LoweredCall& lowered) {
    std::vector<DocumentIds> moved(lowered.problem.documents.begin(), lowered.problem.documents.end());
    for (std::size_t n = 0; n < moved.size(); ++n) {
      moved[n].keys = lists.add(lowered.document_numbers[2 * n]);
      const std::int32_t* of_queries = lists.add(lowered.document_numbers[2 * n + 1]);
      if (moved[n].queries) moved[n].queries = of_queries;
    }
    call.documents = lists.add(moved);
  }
  // In place of numbers for every key, which take a launch for every few thousand.
  void bring_runs(const LoweredCall& lowered) {
    call.documents = lists.add(std::span<const DocumentIds>(lowered.problem.documents));
    call.run_starts = lists.add(lowered.run_starts), call.run_offsets = lists.add(lowered.run_offsets);
  }
  void bring_tables(const LoweredCall& lowered, const std::byte* to) {
    std::vector<cache::PagedSequence> moved;
    const auto* table = reinterpret_cast<const unsigned char* const*>(to);
    for (const cache::PagedSequence& s : lowered.problem.cached) {
      moved.push_back({table, s.length});
      table += PageDistances::table_of(call, s).size();
    }
    call.cached = lists.add(moved);
  }
};

std::int64_t rounded(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

std::int64_t own_bytes(Role role, const Call& c, const Extents& extents) {
  switch (role) {
    case Role::decode:
      return decode_bytes(c, extents);
    case Role::prefill:
      return prefill_bytes(c, extents);
    case Role::exact:
      return exact_bytes(c);
    default:
      return general_bytes(c);
  }
}

template <class What>
std::int64_t list_bytes(What what, const RoleCall& of) {
  return rounded(Brought(what, of, nullptr).bytes());
}

// Brings the lists over; returns the workspace behind them.
Workspace upload_lists(const Brought& brought, const Workspace& workspace, Stream stream) {
  upload(workspace.rest(), brought.upload(), stream);
  Workspace behind = workspace;
  behind.free = workspace.rest() + rounded(brought.bytes());
  return behind;
}

Reason as_reason(const char* sentence) {
  if (!sentence) return {};
  return [sentence] { return std::string(sentence); };
}

// The kernel is for an architecture of `min_major`, and where `is_only` for no other.
struct Architecture {
  int min_major;
  bool is_only;
};
Reason wants_another_device(const Architecture& wanted) {
  const DeviceFacts facts = device_facts();
  if (wanted.is_only ? facts.major == wanted.min_major : facts.major >= wanted.min_major) return {};
  return [is_only = wanted.is_only, ordinal = facts.ordinal, architecture = facts.major * 10 + facts.minor] {
    return "device " + std::to_string(ordinal) + " has compute capability " +
           std::to_string(architecture / 10) + "." + std::to_string(architecture % 10) +
           "; the kernel is for " + (is_only ? "9.0 (Hopper)" : "8.0 (Ampere) and later");
  };
}

// The same for a backward pass.
struct RoleGradients {
  RoleCall forward;
  GradientCall call;  // its lists are the host's

  RoleGradients(BackwardRole role, const LoweredGradients& of) : forward(of.forward), call(of.call) {
    if (role == BackwardRole::exact) return;
    PackedDocuments documents(of);
    if (!documents.sequences.empty()) call = documents.of(call);
    forward.pack(std::move(documents));
  }
};

// What a backward pass has in the workspace before its kernel does: numbers of rows, then marks.
class BackwardMemory {
 public:
  explicit BackwardMemory(const GradientCall& g)
      : rows_(g.all_rows()),
        q_(words(rows_ * GradientCall::slabs(g.forward.dim))),
        k_(words(g.all_keys() * GradientCall::slabs(g.forward.dim))),
        v_(words(g.all_keys() * GradientCall::slabs(g.forward.value_dim))),
        bias_(words(g.bias.elements())),
        marks_(rounded(flag_bytes + (q_ + k_ + v_ + bias_ + words(g.sink.elements())) * 4)) {}

  std::int64_t bytes() const { return 3 * rounded(rows_ * 4) + marks_; }

  // Nothing is marked.
  GradientRows take(std::byte* memory, Stream stream) const {
    const auto floats = [&](std::int64_t n) {
      return reinterpret_cast<float*>(memory + n * rounded(rows_ * 4));
    };
    std::byte* const marked = memory + 3 * rounded(rows_ * 4);
    check(cudaMemsetAsync(marked, 0, static_cast<std::size_t>(marks_), stream), "cudaMemsetAsync");
    auto* const marks = reinterpret_cast<std::uint32_t*>(marked + flag_bytes);
    return {.log_sum_exp = floats(0),
            .rest = floats(1),
            .delta = floats(2),
            .unfinished_q = marks,
            .unfinished_k = marks + q_,
            .unfinished_v = marks + q_ + k_,
            .unfinished_bias = marks + q_ + k_ + v_,
            .unfinished_sink = marks + q_ + k_ + v_ + bias_,
            .any_unfinished = reinterpret_cast<unsigned*>(marked)};
  }

 private:
  // Of so many bits.
  static constexpr std::int64_t words(std::int64_t marks) { return (marks + 31) / 32; }

  static constexpr std::int64_t flag_bytes = 16;
  std::int64_t rows_;              // of q
  std::int64_t q_, k_, v_, bias_;  // words of marks
  std::int64_t marks_;             // bytes of all, with the flag
};

std::int64_t own_bytes(BackwardRole role, const GradientCall& g) {
  return role == BackwardRole::hopper    ? hopper_backward_bytes(g)
         : role == BackwardRole::general ? general_backward_bytes(g)
                                         : exact_backward_bytes(g);
}

}  // namespace

Reason unavailable() {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0)
    return [error] { return std::string("there is no CUDA device: ") + cudaGetErrorString(error); };
  return {};
}

Reason wants_another_device(Role role) {
  const bool is_hopper = role == Role::decode || role == Role::prefill;
  return wants_another_device(Architecture{is_hopper ? 9 : 8, is_hopper});
}

namespace {

// The copy engine counts the rows of all sequences in 31 bits.
const char* rows_refuse(const Extents& extents) {
  constexpr std::int64_t many = std::int64_t{1} << 31;
  return extents.query_rows >= many || extents.key_rows >= many ? "there are 2^31 rows or more" : nullptr;
}

// To copy rows pays where many queries read them.
const char* prefill_refuses(const Call& c, const Extents& extents, const CopiedRows& copies) {
  const bool is_large = c.batch > max_copied_batch || extents.query_rows > max_copied_rows ||
                        (!c.cached && extents.key_rows > max_copied_rows);
  if (!copies.empty() && (c.queries < min_copied_queries || is_large))
    return "the copy engine wants rows without gaps, and everything on 16 bytes; there are too few queries, "
           "or "
           "too many rows, to copy them";
  if (const char* reason = rows_refuse(extents)) return reason;
  return cuda::prefill_refuses(c);
}
const char* decode_refuses(const Call& c, const Extents& extents) {
  if (const char* reason = rows_refuse(extents)) return reason;
  return cuda::decode_refuses(c);
}

// Where prefill cuts the keys of few queries it is the faster one, though it widens all of an int8 cache: 16
// queries of 32 heads over 8192 keys of 8 take 56 us instead of 126, 64 over pages 40 instead of 71 (H200,
// November 2026).
bool prefill_cuts(const LoweredCall& lowered) {
  const RoleCall of(Role::prefill, lowered);
  return is_cut(prefill_kind(of.call)) && !prefill_refuses(of.call, of.extents, of.copies);
}
const char* split_refuses(const LoweredCall& lowered) {
  if (const char* reason = cuda::split_refuses(lowered.call)) return reason;
  return prefill_cuts(lowered) ? "prefill cuts the keys" : nullptr;
}

}  // namespace

Reason refuses(Role role, const LoweredCall& lowered) {
  if (role == Role::split) return as_reason(split_refuses(lowered));
  const RoleCall of(role, lowered);
  const char* reason = role == Role::decode    ? decode_refuses(of.call, of.extents)
                       : role == Role::prefill ? prefill_refuses(of.call, of.extents, of.copies)
                       : role == Role::general ? general_refuses(of.call)
                                               : exact_refuses(of.call);
  return as_reason(reason);
}

std::int64_t workspace_bytes(Role role, const LoweredCall& lowered) {
  const RoleCall of(role, lowered);
  return Workspace::counter_bytes + list_bytes(role, of) + of.copies.bytes() +
         rounded(own_bytes(role, of.call, of.extents));
}

void run(Role role, const LoweredCall& lowered, const Workspace& workspace, Stream stream, Cut cut) {
  const RoleCall of(role, lowered);
  const Brought brought(role, of, workspace.rest());
  Workspace behind = upload_lists(brought, workspace, stream);
  const Call c = of.copies.bring(brought.call, behind.rest(), stream);
  behind.free = behind.rest() + of.copies.bytes();
  if (role == Role::exact) return launch_exact(c, behind, stream, cut);
  if (is_general(role)) return launch_general(c, behind, stream, cut);
  if (role == Role::decode) return launch_decode(c, of.extents, behind, stream, cut);
  launch_prefill(c, of.extents, brought.tiles, behind, stream);
  of.copies.fetch(c, stream);
}

Reason wants_another_device(BackwardRole role) {
  const bool is_hopper = role == BackwardRole::hopper;
  return wants_another_device(Architecture{is_hopper ? 9 : 8, is_hopper});
}

Reason refuses(BackwardRole role, const LoweredGradients& lowered) {
  if (lowered.problem.forward.place) return as_reason("it takes all heads of a call");
  const RoleGradients of(role, lowered);
  const char* reason = role == BackwardRole::hopper    ? hopper_backward_refuses(of.call)
                       : role == BackwardRole::general ? general_backward_refuses(of.call)
                                                       : exact_backward_refuses(of.call);
  return as_reason(reason);
}

std::int64_t workspace_bytes(BackwardRole role, const LoweredGradients& lowered) {
  const RoleGradients of(role, lowered);
  return Workspace::counter_bytes + list_bytes(Documents::numbers, of.forward) +
         BackwardMemory(of.call).bytes() + rounded(own_bytes(role, of.call));
}

void run(BackwardRole role, const LoweredGradients& lowered, const Workspace& workspace, Stream stream) {
  const RoleGradients of(role, lowered);
  const Brought brought(Documents::numbers, of.forward, workspace.rest());
  Workspace behind = upload_lists(brought, workspace, stream);
  const BackwardMemory memory(of.call);
  GradientCall g = of.call;
  g.forward = brought.call;
  g.rows = memory.take(behind.rest(), stream);
  behind.free = behind.rest() + memory.bytes();
  const MaskTiles mask = mask_tiles(of.call.forward);
  const bool writes_marked =
      role == BackwardRole::hopper ? hopper_writes_marked(g) : role == BackwardRole::general;
  const Marked marked = writes_marked ? Marked::written : Marked::unwritten;
  if (role == BackwardRole::hopper) {
    launch_hopper_backward(g, mask, behind, stream);
  } else if (role == BackwardRole::general) {
    launch_general_backward(g, mask, behind, stream);
  } else {
    launch_prepare(g, Sums::of_the_cpu, stream);
    launch_exact_backward(g, behind, stream);
  }
  launch_sink_gradient(g, stream);
  launch_completion(g, marked, stream);
}

// The backend: a kernel runs on the device of its call, on the call's stream.

namespace {

bool run_on_stream(Role role, const Problem& p) {
  const Current device(ordinal_of(p));
  const LoweredCall lowered(p);
  const auto stream = static_cast<Stream>(p.options.stream);
  const CallWorkspace workspace(workspace_bytes(role, lowered), stream);
  run(role, lowered, workspace.get(), stream);
  return false;
}

RepairMarks run_on_stream(BackwardRole role, const GradientProblem& g) {
  const Current device(ordinal_of(g));
  const LoweredGradients lowered(g);
  const auto stream = static_cast<Stream>(g.forward.options.stream);
  const CallWorkspace workspace(workspace_bytes(role, lowered), stream);
  run(role, lowered, workspace.get(), stream);
  return {};
}

Reason refuses_here(BackwardRole role, const GradientProblem& g) {
  const Current device(ordinal_of("q", g.forward.inputs.q));
  if (Reason reason = wants_another_device(role)) return reason;
  return refuses(role, LoweredGradients(g));
}

Reason refuses_here(Role role, const Problem& p) {
  const Current device(ordinal_of("q", p.inputs.q));
  if (Reason reason = wants_another_device(role)) return reason;
  return refuses(role, LoweredCall(p));
}

Kernel kernel_of(const char* name, Role role) {
  return {.name = name,
          .device = Device::cuda,
          .unavailable = unavailable,
          .refuses = [role](const Problem& p) { return refuses_here(role, p); },
          .attend = [role](const Problem& p) { return run_on_stream(role, p); }};
}

// One that also has gradients, or has nothing else.
Kernel with_gradients(Kernel kernel, BackwardRole backward) {
  kernel.refuses_backward = [backward](const GradientProblem& g) { return refuses_here(backward, g); };
  kernel.backward = [backward](const GradientProblem& g) { return run_on_stream(backward, g); };
  return kernel;
}
Kernel kernel_of(const char* name, Role role, BackwardRole backward) {
  return with_gradients(kernel_of(name, role), backward);
}
Kernel kernel_of(const char* name, BackwardRole backward) {
  return with_gradients({.name = name, .device = Device::cuda, .unavailable = unavailable}, backward);
}

class Cuda final : public Backend {
 public:
  Cuda()
      : Backend("cuda", Device::cuda,
                {kernel_of("cuda.decode.sm90", Role::decode), kernel_of("cuda.split.sm80", Role::split),
                 kernel_of("cuda.prefill.sm90", Role::prefill),
                 kernel_of("cuda.backward.sm90", BackwardRole::hopper),
                 kernel_of("cuda.general.sm80", Role::general, BackwardRole::general),
                 kernel_of("cuda.exact.sm80", Role::exact, BackwardRole::exact)}) {}

  std::unique_ptr<const Projection> project(const View& w, std::span<const float> bias) const override {
    return cuda::project(w, bias);
  }
  std::unique_ptr<const Projection> project_lent(const View& w, const Optional<View>& bias) const override {
    return cuda::project_lent(w, bias);
  }
  void project_all(std::span<const Projected> all) const override { cuda::project_all(all); }
  void add_weight_gradient(const View& x, const View& y, const MutableView& w,
                           const MutableView& bias) const override {
    cuda::add_weight_gradient(x, y, w, bias);
  }
  void rotate(std::span<const MutableView> alike, std::span<const std::int64_t> positions,
              const Rotary& rotary, std::span<const std::int64_t> lengths) const override {
    for (const MutableView& x : alike) cuda::rotate(x, positions, rotary, lengths);
  }
  std::shared_ptr<const void> stay_with(const char* argument, const View& x) const override {
    return std::make_shared<const Current>(ordinal_of(argument, x));
  }
  Memory allocate(std::size_t bytes) const override { return take_memory(bytes); }
  std::unique_ptr<backend::DevicePages> make_pages(std::int64_t bytes) const override {
    return cuda::make_pages(bytes);
  }
  void copy(const View& from, const MutableView& into) const override { cuda::copy(from, into); }
  void add(const View& from, const MutableView& into) const override { cuda::add(from, into); }
  void average_heads(const View& from, const MutableView& into) const override {
    cuda::average_heads(from, into);
  }
  void fill(const MutableView& x, float value) const override { cuda::fill(x, value); }
  void merge(const Outputs& into, const Results& other) const override { cuda::merge(into, other); }
};

}  // namespace

const Backend& cuda_backend() {
  static const Cuda& only = *new Cuda;  // never destroyed: see backends()
  return only;
}

}  // namespace heed::cuda
