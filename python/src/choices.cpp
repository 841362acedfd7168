// SPDX-License-Identifier: Apache-2.0
// Reads keyword arguments: each has a name, a reader, and the functions that know it.
#include "choices.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "anchors.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

void read_key_lengths(Choices& choices, nb::handle object) {
  const Integers lengths = read_integers("key_lengths", object);
  if (lengths.shape.size() != 1)
    throw Error(Error::shape, "key_lengths: " + std::to_string(lengths.shape.size()) + " axes are not 1");
  for (const std::int64_t length : lengths.values) {
    if (!std::in_range<std::int32_t>(length))
      throw Error(Error::value, "key_lengths: " + std::to_string(length) + " for batch entry " +
                                    std::to_string(choices.key_lengths.size()) + " is outside [0, " +
                                    std::to_string(std::numeric_limits<std::int32_t>::max()) + "]");
    choices.key_lengths.push_back(static_cast<std::int32_t>(length));
  }
  choices.options.masks.emplace_back(KeyLengths{choices.key_lengths});
}

const Tensor& hold(Choices& choices, const char* name, nb::handle object) {
  return choices.held.emplace_back(read_tensor(name, object, Use::read, Where::any));
}

void read_keep(Choices& choices, nb::handle object) {
  const Tensor& mask = hold(choices, "keep", object);
  choices.options.masks.emplace_back(Keep{bool_view_of(mask, right_aligned(mask))});
}

void read_hide(Choices& choices, nb::handle object) {
  const Tensor& mask = hold(choices, "hide", object);
  choices.options.masks.emplace_back(Hide{bool_view_of(mask, right_aligned(mask))});
}

void read_bias(Choices& choices, nb::handle object) {
  const Tensor& bias = hold(choices, "bias", object);
  choices.options.bias = view_of(bias, right_aligned(bias));
}

// (heads), (batch, heads) or (batch, heads, 1, 1)
void read_sink(Choices& choices, nb::handle object) {
  const Tensor& sink = hold(choices, "sink", object);
  Placed placed = right_aligned(sink);
  if (sink.rank <= 2)
    placed = {{placed.shape.length, placed.shape.dim, 1, 1}, {placed.stride.length, placed.stride.dim, 0, 1}};
  choices.options.sink = view_of(sink, placed);
}

void read_scores(Choices& choices, nb::handle object) {
  constexpr std::array stages{"raw", "softcapped", "biased"};
  const std::string word = read_word("return_scores", object);
  const auto found = std::find(stages.begin(), stages.end(), word);
  if (found == stages.end())
    throw Error(Error::value,
                "return_scores: \"" + word + "\" is none of \"raw\", \"softcapped\", \"biased\"");
  choices.scores = static_cast<Stage>(found - stages.begin());
}

void read_tree(Choices& choices, nb::handle object) {
  const Tensor& mask = hold(choices, "tree", object);
  choices.options.masks.emplace_back(Tree{bool_view_of(mask, right_aligned(mask))});
}

void read_cache(Choices& choices, nb::handle object) {
  if (!nb::isinstance<KvCache>(object)) throw wrong_kind("cache", object, "a heed.KvCache");
  choices.cache = &nb::cast<KvCache&>(object);
}

std::vector<std::int64_t> read_list(const char* name, nb::handle object) {
  Integers integers = read_integers(name, object);
  if (integers.shape.size() != 1)
    throw Error(Error::shape,
                std::string(name) + ": " + std::to_string(integers.shape.size()) + " axes are not 1");
  return std::move(integers.values);
}

// One entry more than there are sequences, so there is always one.
std::vector<std::int64_t> read_starts(const char* name, nb::handle object) {
  std::vector<std::int64_t> starts = read_list(name, object);
  if (starts.empty())
    throw Error(Error::shape, std::string(name) + ": no entries; 0 and the end of every sequence are needed");
  return starts;
}

void read_layer_weights(Choices& choices, nb::handle object) {
  if (nb::isinstance<nb::str>(object) && nb::cast<std::string>(object) == "average")
    choices.weights = Weights::average;
  else if (read_flag("return_weights", object))
    choices.weights = Weights::per_head;
}

void read_threads(Choices& choices, nb::handle object) {
  const std::int64_t threads = read_integer("threads", object);
  if (threads < 1 || threads > 4096)
    throw Error(Error::value, "threads: " + std::to_string(threads) + " is outside [1, 4096]");
  choices.options.threads = static_cast<int>(threads);
}

// To the library no name is no wish.
void read_kernel(Choices& choices, nb::handle object) {
  const std::string word = read_word("kernel", object);
  if (word.empty()) {
    std::string known;
    for (const std::string& name : kernel_names()) known += (known.empty() ? "" : ", ") + name;
    throw Error(Error::unsupported, "kernel: \"\" is not a kernel of this build; there are " + known);
  }
  choices.options.kernel = word;
}

void read_layout(Choices& choices, nb::handle object) {
  const std::string word = read_word("layout", object);
  if (word != "bhsd" && word != "bshd")
    throw Error(Error::value, "layout: \"" + word +
                                  "\" is neither \"bhsd\" (batch, heads, length, dim) nor \"bshd\" (batch, "
                                  "length, heads, dim)");
  choices.layout = word == "bshd" ? AxisOrder::bshd : AxisOrder::bhsd;
}

struct Keyword {
  std::string_view name;
  void (*read)(Choices&, nb::handle);
  bool of_attention, of_layer;
};

constexpr std::array keywords_known{
    Keyword{"causal", read_causal, true, true},
    Keyword{"window", read_window, true, true},
    Keyword{"key_lengths", read_key_lengths, true, true},
    Keyword{"document", read_document, true, true},
    Keyword{"query_document", read_query_document, true, true},
    Keyword{"cache", read_cache, true, true},
    Keyword{"sequences", [](Choices& c, nb::handle o) { c.sequences = read_list("sequences", o); }, true,
            true},
    Keyword{"query_starts", [](Choices& c, nb::handle o) { c.query_starts = read_starts("query_starts", o); },
            true, false},
    Keyword{"key_starts", [](Choices& c, nb::handle o) { c.key_starts = read_starts("key_starts", o); }, true,
            false},
    Keyword{"query_lengths",
            [](Choices& c, nb::handle o) { c.query_lengths = read_list("query_lengths", o); }, true, false},
    Keyword{"front", [](Choices& c, nb::handle o) { c.front = read_integer("front", o); }, true, true},
    Keyword{"tree", read_tree, true, true},
    Keyword{"keep", read_keep, true, true},
    Keyword{"hide", read_hide, true, true},
    Keyword{"bias", read_bias, true, true},
    Keyword{"alibi", read_alibi, true, true},
    Keyword{"scale", [](Choices& c, nb::handle o) { c.options.scale = read_double("scale", o); }, true, true},
    Keyword{"softcap", [](Choices& c, nb::handle o) { c.options.softcap = read_double("softcap", o); }, true,
            true},
    Keyword{"sink", read_sink, true, true},
    Keyword{"dropout",
            [](Choices& c, nb::handle o) { c.options.dropout = Dropout{read_double("dropout", o), 0}; }, true,
            false},
    Keyword{"seed", [](Choices& c, nb::handle o) { c.seed = read_seed(o); }, true, true},
    Keyword{"layout", read_layout, true, false},
    Keyword{"head_map", [](Choices& c, nb::handle o) { c.options.head_map = read_head_map(o); }, true, false},
    Keyword{"return_weights",
            [](Choices& c, nb::handle o) {
              c.weights = read_flag("return_weights", o) ? Weights::per_head : Weights::none;
            },
            true, false},
    Keyword{"return_weights", read_layer_weights, false, true},
    Keyword{"return_lse", [](Choices& c, nb::handle o) { c.wants_log_sum_exp = read_flag("return_lse", o); },
            true, true},
    Keyword{"return_scores", read_scores, true, true},
    Keyword{"out", [](Choices& c, nb::handle o) { c.out = nb::borrow(o); }, true, true},
    Keyword{"kernel", read_kernel, true, true},
    Keyword{"threads", read_threads, true, true},
    Keyword{"counts", [](Choices& c, nb::handle o) { c.counts = read_list("counts", o); }, false, true},
    Keyword{"positions", [](Choices& c, nb::handle o) { c.positions = read_integers("positions", o).values; },
            false, true},
    Keyword{"key_positions",
            [](Choices& c, nb::handle o) { c.key_positions = read_integers("key_positions", o).values; },
            false, true}};

// What a backward pass does not have: it returns gradients only, and there are none by a cache.
constexpr std::array<std::string_view, 6> only_forward{"cache",      "sequences",     "return_weights",
                                                       "return_lse", "return_scores", "out"};

// What no rank can have, since it has a part of the keys only; and shares have one order of axes.
constexpr std::array<std::string_view, 9> not_over_ranks{"cache",         "sequences",     "query_starts",
                                                         "key_starts",    "query_lengths", "return_weights",
                                                         "return_scores", "tree",          "layout"};

// A layer's ranks gather their heads, and have neither weights of all of them nor dropout.
constexpr std::array<std::string_view, 3> not_of_a_layer_over_ranks{"return_weights", "return_scores",
                                                                    "seed"};

bool is_of(Caller caller, const Keyword& keyword) {
  const auto is_among = [&](const auto& names) {
    return std::find(names.begin(), names.end(), keyword.name) != names.end();
  };
  switch (caller) {
    case Caller::layer:
      return keyword.of_layer;
    case Caller::attention:
      return keyword.of_attention;
    case Caller::backward:
      return keyword.of_attention && !is_among(only_forward);
    case Caller::ranks:
      return keyword.of_attention && !is_among(not_over_ranks);
    case Caller::backward_over_ranks:
      return keyword.of_attention && !is_among(not_over_ranks) && !is_among(only_forward);
    case Caller::layer_over_ranks:
      return keyword.of_layer && !is_among(not_of_a_layer_over_ranks);
    case Caller::decode_over_ranks:
      return keyword.of_attention && (keyword.name == "sequences" || !is_among(not_over_ranks));
  }
  return false;
}

const Keyword& find_keyword(Caller caller, std::string_view name) {
  for (const Keyword& keyword : keywords_known)
    if (is_of(caller, keyword) && keyword.name == name) return keyword;
  nb::list known;
  if (caller == Caller::backward || caller == Caller::backward_over_ranks)
    for (const char* argument : {"out_gradient", "q", "k", "v", "out", "lse", "lse_gradient", "by"})
      known.append(argument);
  else if (caller == Caller::layer || caller == Caller::layer_over_ranks)
    for (const char* argument : {"x", "context", "value"}) known.append(argument);
  else if (caller == Caller::decode_over_ranks)
    for (const char* argument : {"q", "cache", "lengths"}) known.append(argument);
  else
    for (const char* argument : {"q", "k", "v"}) known.append(argument);
  for (const Keyword& keyword : keywords_known)
    if (is_of(caller, keyword)) known.append(nb::str(keyword.name.data(), keyword.name.size()));
  throw unknown_keyword(std::string(name), known);
}

void give_front(Choices& choices) {
  if (choices.front == 0) return;
  for (Mask& mask : choices.options.masks)
    if (auto* window = std::get_if<Window>(&mask)) {
      window->front = choices.front;
      return;
    }
  throw Error(Error::value, "front: " + std::to_string(choices.front) + ", but there is no window");
}

}  // namespace

void check_not_empty(const char* name, const SaidList& list, std::int64_t wanted, const char* each) {
  if (list && list->empty() && wanted > 0)
    throw Error(Error::shape, std::string(name) + ": none are given; one per " + each + " is needed");
}

std::uint64_t read_seed(nb::handle object) {
  const nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    throw wrong_kind("seed", object, "an integer");
  }
  const unsigned long long seed = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred()) {
    PyErr_Clear();
    throw Error(Error::value, "seed: " + text_of(number) + " is outside [0, " +
                                  std::to_string(std::numeric_limits<std::uint64_t>::max()) + "]");
  }
  return seed;
}

HeadMap read_head_map(nb::handle object) {
  const std::string word = read_word("head_map", object);
  if (word == "interleaved") return HeadMap::interleaved;
  if (word == "tiled") return HeadMap::tiled;
  throw Error(Error::value, "head_map: \"" + word + "\" is none of \"interleaved\", \"tiled\"");
}

Choices read_choices(Caller caller, const nb::kwargs& keywords) {
  Choices choices;
  if (keywords.size() == 0) return choices;
  for (const auto& [name, value] : keywords) {
    const Keyword& keyword = find_keyword(caller, nb::cast<std::string>(name));
    if (!value.is_none()) keyword.read(choices, value);
  }
  if (choices.options.dropout) choices.options.dropout->seed = choices.seed;
  share_anchor(choices);
  give_front(choices);
  return choices;
}

}  // namespace heed::python
