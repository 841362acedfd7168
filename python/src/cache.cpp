// SPDX-License-Identifier: Apache-2.0
// heed.KvCache: sequences that grow, and what is done with them.
#include "heed/cache.hpp"

#include <algorithm>
#include <new>

#include "bindings.hpp"
#include "cache_docs.hpp"
#include "cache_options.hpp"
#include "choices.hpp"
#include "copies.hpp"
#include "layer_question.hpp"
#include "others_run.hpp"
#include "result.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

// New keys and values. Both are held for as long as the call takes; the cache copies them.
struct Tokens {
  Tensor k, v;
  View keys, values;

  Tokens(nb::handle k_object, nb::handle v_object)
      : k(read_tensor("k", k_object, Use::read, Where::any)),
        v(read_tensor("v", v_object, Use::read, Where::any)) {
    check_rank(k, 2, 4);
    check_same_rank(v, k);
    keys = view_of(k, right_aligned(k));
    values = view_of(v, right_aligned(v));
  }
};

void append(KvCache& self, nb::handle k, nb::handle v, nb::handle counts) {
  const Tokens tokens(k, v);
  SaidList counted;
  if (!counts.is_none()) counted = read_integers("counts", counts).values;
  check_not_empty("counts", counted, tokens.keys.shape.batch, "sequence");
  const OthersRun others_run;
  self.append(tokens.keys, tokens.values, entries_of(counted));
}

void append_to(KvCache& self, nb::handle sequence, nb::handle k, nb::handle v) {
  const std::int64_t number = read_integer("sequence", sequence);
  const Tokens tokens(k, v);
  const OthersRun others_run;
  self.append_to(number, tokens.keys, tokens.values);
}

void truncate(KvCache& self, nb::handle sequence, nb::handle length) {
  const std::int64_t number = read_integer("sequence", sequence);
  self.truncate(number, read_integer("length", length));
}

void reset(KvCache& self, nb::handle sequence) {
  if (sequence.is_none())
    self.reset();
  else
    self.reset(read_integer("sequence", sequence));
}

std::int64_t fork(KvCache& self, nb::handle sequence, nb::handle length) {
  const std::int64_t number = read_integer("sequence", sequence);
  return self.fork(number, length.is_none() ? std::nullopt : std::optional(read_integer("length", length)));
}

std::int64_t length(const KvCache& self, nb::handle sequence) {
  return self.length(read_integer("sequence", sequence));
}

nb::list lengths(const KvCache& self) {
  nb::list all;
  for (const std::optional<std::int64_t>& length : self.lengths())
    if (length)
      all.append(*length);
    else
      all.append(nb::none());
  return all;
}

Element element_of(CacheType type) {
  return type == CacheType::f16 ? Element::f16 : type == CacheType::bf16 ? Element::bf16 : Element::f32;
}

Result copy_for(const KvCache& self, const std::optional<Tensor>& like, const char* name,
                std::span<const std::int64_t> shape) {
  if (like) return {name, *like, like->element, shape};
  return {name, element_of(self.config().type), shape};
}

nb::object read(const KvCache& self, nb::handle sequence, nb::handle like_object) {
  const std::int64_t number = read_integer("sequence", sequence);
  std::optional<Tensor> like;
  if (!like_object.is_none()) {
    like.emplace(read_tensor("like", like_object, Use::copy, Where::any));
    if (dtype_of(*like) == DType::f64) throw Error(Error::dtype, "like.dtype: f64 is none of f32, f16, bf16");
  }
  const KvCacheConfig& config = self.config();
  std::array<std::int64_t, 4> shape{1, config.kv_heads, self.length(number), config.dim};
  Result k = copy_for(self, like, "k", shape);
  shape[3] = *config.value_dim;
  Result v = copy_for(self, like, "v", shape);
  const MutableView keys = mutable_view_of(k.tensor(), right_aligned(k.tensor()));
  const MutableView values = mutable_view_of(v.tensor(), right_aligned(v.tensor()));
  {
    const OthersRun others_run;
    self.read(number, keys, values);
  }
  const nb::object k_object = k.object();
  return nb::make_tuple(k_object, v.object());
}

void save(const KvCache& self, nb::handle path) {
  const std::string file = read_path("path", path);
  const OthersRun others_run;
  self.save(file);
}

KvCache to(const KvCache& self, nb::handle device, nb::handle pages) {
  const Device where = read_device(device);
  const auto wanted = pages.is_none() ? std::nullopt : std::optional(read_integer("pages", pages));
  const OthersRun others_run;
  return self.to(where, wanted);
}

KvCache load(nb::handle path) {
  const std::string file = read_path("path", path);
  const OthersRun others_run;
  return KvCache::load(file);
}

// The device is no array of the file: a file is loaded to the CPU's memory.
nb::dict state_of(const KvCache& self) {
  Arrays arrays;
  {
    const OthersRun others_run;
    arrays = self.to_arrays();
  }
  nb::dict state = numpy_arrays(arrays);
  state["device"] = self.config().device == Device::cpu ? "cpu" : "cuda";
  return state;
}

nb::object restored(nb::handle cls, nb::handle state) {
  check_class<KvCache>(cls, "heed.KvCache");
  const Device device = read_device(entry_of(state, "device"));
  nb::dict named;
  for (const auto& [name, value] : nb::borrow<nb::dict>(state))
    if (!nb::isinstance<nb::str>(name) || !name.equal(nb::str("device"))) named[name] = value;
  Arrays arrays = *arrays_of_mapping(named, "");
  std::optional<KvCache> made;
  {
    const OthersRun others_run;
    made.emplace(KvCache::from_arrays(std::move(arrays)));
    if (device != Device::cpu) made = made->to(device);
  }
  return object_of(cls, *std::move(made));
}

nb::object deep_copy(nb::handle self, const nb::dict& memo) {
  const auto& cache = nb::cast<const KvCache&>(self);
  std::optional<KvCache> made;
  {
    const OthersRun others_run;
    made.emplace(cache.to(cache.config().device));
  }
  return deep_copied(self, memo, object_of(self.type(), *std::move(made)));
}

void define_copying(nb::module_& m, nb::class_<KvCache>& type) {
  type.def("__reduce__",
           [](nb::handle self) {
             return reduced(self, "restored_cache", state_of(nb::cast<const KvCache&>(self)));
           })
      .def("__deepcopy__", &deep_copy, nb::arg("memo"));
  m.def("restored_cache", &restored, nb::arg("cls").none(), nb::arg("state").none(), restored_cache_doc);
}

void define_growth(nb::class_<KvCache>& type) {
  type.def("append", &append, nb::arg("k").none(), nb::arg("v").none(), nb::arg("counts") = nb::none(),
           nb::sig("def append(self, k: ArrayT, v: ArrayT, counts: typing.Any = None) -> None"), append_doc)
      .def("append_to", &append_to, nb::arg("sequence").none(), nb::arg("k").none(), nb::arg("v").none(),
           nb::sig("def append_to(self, sequence: int, k: ArrayT, v: ArrayT) -> None"), append_to_doc)
      .def("truncate", &truncate, nb::arg("sequence").none(), nb::arg("length").none(),
           nb::sig("def truncate(self, sequence: int, length: int) -> None"), truncate_doc)
      .def("reset", &reset, nb::arg("sequence") = nb::none(),
           nb::sig("def reset(self, sequence: int | None = None) -> None"), reset_doc)
      .def("fork", &fork, nb::arg("sequence").none(), nb::arg("length") = nb::none(),
           nb::sig("def fork(self, sequence: int, length: int | None = None) -> int"), fork_doc)
      .def(
          "release",
          [](KvCache& self, nb::handle sequence) { self.release(read_integer("sequence", sequence)); },
          nb::arg("sequence").none(), nb::sig("def release(self, sequence: int) -> None"), release_doc)
      .def("add", &KvCache::add, add_doc);
}

void define_contents(nb::class_<KvCache>& type) {
  type.def("length", &length, nb::arg("sequence").none(), nb::sig("def length(self, sequence: int) -> int"),
           length_doc)
      .def("read", &read, nb::arg("sequence").none(), nb::arg("like") = nb::none(),
           nb::sig("def read(self, sequence: int, like: ArrayT | None = None) -> tuple[ArrayT, ArrayT]"),
           read_doc)
      .def(
          "to", &to, nb::arg("device").none(), nb::arg("pages") = nb::none(),
          nb::sig("def to(self, device: typing.Literal['cpu', 'cuda'], pages: int | None = None) -> KvCache"),
          to_doc)
      .def("save", &save, nb::arg("path").none(), nb::sig("def save(self, path: typing.Any) -> None"),
           save_doc)
      .def_static("load", &load, nb::arg("path").none(), nb::sig("def load(path: typing.Any) -> KvCache"),
                  load_cache_doc);
}

void define_counts(nb::class_<KvCache>& type) {
  type.def_prop_ro("sequences", &KvCache::sequences,
                   "How many sequences there are; released numbers count until they are used again.")
      .def_prop_ro("lengths", &lengths, nb::for_getter(nb::sig("def lengths(self, /) -> list[int | None]")),
                   "Tokens of each sequence; None for a released number.")
      .def_prop_ro("bytes", &KvCache::bytes, "Of the pages in use; shared ones count once.")
      .def_prop_ro("bytes_per_token", &KvCache::bytes_per_token,
                   "Keys, values and scales of one token, all heads.")
      .def_prop_ro("pages_in_use", &KvCache::pages_in_use, "Pages that hold tokens; shared ones count once.");
}

template <class Get>
void define_extent(nb::class_<KvCache>& type, const char* name, Get get, const char* doc) {
  type.def_prop_ro(name, [get](const KvCache& self) { return get(self.config()); }, doc);
}

void define_configuration(nb::class_<KvCache>& type) {
  define_extent(type, "batch", [](const KvCacheConfig& c) { return c.batch; }, "Sequences at the start.");
  define_extent(type, "kv_heads", [](const KvCacheConfig& c) { return c.kv_heads; }, "Key and value heads.");
  define_extent(
      type, "capacity", [](const KvCacheConfig& c) { return c.capacity; }, "Tokens a sequence may hold.");
  define_extent(type, "dim", [](const KvCacheConfig& c) { return c.dim; }, "Dimensions of a key.");
  define_extent(
      type, "value_dim", [](const KvCacheConfig& c) { return *c.value_dim; }, "Dimensions of a value.");
  define_extent(type, "page_size", [](const KvCacheConfig& c) { return *c.page_size; }, "Tokens per page.");
  define_extent(type, "pages", [](const KvCacheConfig& c) { return *c.pages; }, "Pages of the pool.");
  type.def_prop_ro(
      "device", [](const KvCache& self) { return self.config().device == Device::cpu ? "cpu" : "cuda"; },
      nb::for_getter(nb::sig("def device(self, /) -> typing.Literal['cpu', 'cuda']")),
      "'cpu' or 'cuda': where its pages lie.");
  type.def_prop_ro(
      "dtype", [](const KvCache& self) { return word_for(self.config().type); },
      nb::for_getter(
          nb::sig("def dtype(self, /) -> typing.Literal['float32', 'float16', 'bfloat16', 'int8']")),
      "'float32', 'float16', 'bfloat16' or 'int8'.");
}

}  // namespace

void define_cache(nb::module_& m) {
  nb::class_<KvCache> type(m, "KvCache", cache_doc);
  type.def(
      "__init__",
      [](KvCache* self, nb::handle batch, nb::handle kv_heads, nb::handle capacity, nb::handle dim,
         const nb::kwargs& options) {
        KvCacheConfig config = read_cache_options(options);
        config.batch = read_integer("batch", batch);
        config.kv_heads = read_integer("kv_heads", kv_heads);
        config.capacity = read_integer("capacity", capacity);
        config.dim = read_integer("dim", dim);
        new (self) KvCache(config);
      },
      nb::arg("batch").none(), nb::arg("kv_heads").none(), nb::arg("capacity").none(), nb::arg("dim").none(),
      nb::arg("options"), nb::sig(cache_signature));
  define_growth(type);
  define_contents(type);
  define_counts(type);
  define_configuration(type);
  define_copying(m, type);
  type.def("__repr__", [](const KvCache& self) { return in_words(self.config()); });
}

}  // namespace heed::python
