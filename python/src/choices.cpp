// SPDX-License-Identifier: Apache-2.0
// Reads keyword arguments: each has a name, a reader, and the functions that know it.
#include "choices.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "anchors.hpp"
#include "heed/option_list.hpp"
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

// Which callers have a keyword, beside those that any attention has.
enum Trait : unsigned {
  of_attention = 1,
  of_layer = 2,
  of_both = of_attention | of_layer,
  forward_only = 4,    // a backward pass returns gradients alone, and there are none by a cache
  of_one_process = 8,  // a rank has a part of the keys only; and shares have one order of axes
  of_all_heads = 16,   // a layer's ranks gather their heads, and have neither weights of all nor dropout
  result = 32,         // has a place of its own in a signature, which says what is returned
};

#define HEED_ALIGN "typing.Literal['starts', 'ends']"

using Read = void (*)(Choices&, const char* name, nb::handle);

// What every list of keywords is made of: what is read, the signatures and the stub made of them, and by
// kinds torch's operators and JAX's attributes. In the order of the signatures.
struct Keyword {
  const char* name;
  const char* kind;        // as _heed.keywords_of() asks
  const char* annotation;  // its type and default
  unsigned traits;
  Read read;
};

constexpr const char* anything = "typing.Any = None";
constexpr const char* a_number = "float | None = None";

template <void (*read)(Choices&, nb::handle)>
void by(Choices& choices, const char*, nb::handle object) {
  read(choices, object);
}

template <auto list>
void read_into_list(Choices& choices, const char* name, nb::handle object) {
  choices.*list = read_list(name, object);
}
template <auto starts>
void read_into_starts(Choices& choices, const char* name, nb::handle object) {
  choices.*starts = read_starts(name, object);
}
template <auto positions>
void read_into_positions(Choices& choices, const char* name, nb::handle object) {
  choices.*positions = read_integers(name, object).values;
}

void read_number(Choices& choices, const char* name, nb::handle object) {
  visit_numbers(choices.options, [&](const OptionText& text, std::optional<double>& number) {
    if (std::string_view(text.keyword()) == name) number = read_double(name, object);
  });
}

std::vector<Keyword> make_keywords() {
  std::vector<Keyword> all{
      {"cache", "elsewhere", "KvCache | None = None", of_both | forward_only | of_one_process,
       by<read_cache>},
      {"sequences", "elsewhere", anything, of_both | forward_only | of_one_process,
       read_into_list<&Choices::sequences>},
      {"query_starts", "starts", anything, of_attention | of_one_process,
       read_into_starts<&Choices::query_starts>},
      {"key_starts", "starts", anything, of_attention | of_one_process,
       read_into_starts<&Choices::key_starts>},
      {"query_lengths", "lengths", anything, of_attention | of_one_process,
       read_into_list<&Choices::query_lengths>},
      {"counts", "lengths", anything, of_layer, read_into_list<&Choices::counts>},
      {"positions", "positions", anything, of_layer, read_into_positions<&Choices::positions>},
      {"key_positions", "positions", anything, of_layer, read_into_positions<&Choices::key_positions>},
      {"causal", "causal", "bool | " HEED_ALIGN " | None = None", of_both, by<read_causal>},
      {"window", "window",
       "tuple[int | None, int | None] | tuple[int | None, int | None, " HEED_ALIGN "] | None = None", of_both,
       by<read_window>},
      {"front", "count", "int = 0", of_both,
       [](Choices& c, const char* name, nb::handle o) { c.front = read_integer(name, o); }},
      {"key_lengths", "lengths", anything, of_both, by<read_key_lengths>},
      {"document", "aligned ids", anything, of_both, by<read_document>},
      {"query_document", "ids", anything, of_both, by<read_query_document>},
      {"tree", "booleans", anything, of_both | of_one_process, by<read_tree>},
      {"keep", "booleans", anything, of_both, by<read_keep>},
      {"hide", "booleans", anything, of_both, by<read_hide>},
      {"bias", "floats", anything, of_both, by<read_bias>},
      {"alibi", "aligned slopes", anything, of_both, by<read_alibi>}};
  Options none;
  visit_numbers(none, [&](const OptionText& text, const auto&) {
    all.push_back({text.keyword(), "number", a_number, of_both, read_number});
  });
  for (const Keyword& one : std::initializer_list<Keyword>{
           {"sink", "sinks", anything, of_both, by<read_sink>},
           {"dropout", "probability", "float = 0.0", of_attention,
            [](Choices& c, const char* name, nb::handle o) {
              c.options.dropout = Dropout{read_double(name, o), 0};
            }},
           {"seed", "seed", "int = 0", of_both | of_all_heads,
            [](Choices& c, const char*, nb::handle o) { c.seed = read_seed(o); }},
           {"head_map", "word", "typing.Literal['interleaved', 'tiled'] = 'interleaved'", of_attention,
            [](Choices& c, const char*, nb::handle o) { c.options.head_map = read_head_map(o); }},
           {"layout", "layout", "typing.Literal['bhsd', 'bshd'] = 'bhsd'", of_attention | of_one_process,
            by<read_layout>},
           {"return_weights", "elsewhere", "", of_attention | forward_only | of_one_process | result,
            [](Choices& c, const char* name, nb::handle o) {
              c.weights = read_flag(name, o) ? Weights::per_head : Weights::none;
            }},
           {"return_weights", "elsewhere", "", of_layer | of_all_heads | result, by<read_layer_weights>},
           {"return_lse", "result", "", of_both | forward_only | result,
            [](Choices& c, const char* name, nb::handle o) { c.wants_log_sum_exp = read_flag(name, o); }},
           {"return_scores", "elsewhere", "", of_both | forward_only | of_one_process | of_all_heads | result,
            by<read_scores>},
           {"out", "elsewhere", "ArrayT | None = None", of_both | forward_only,
            [](Choices& c, const char*, nb::handle o) { c.out = nb::borrow(o); }},
           {"kernel", "word", "str | None = None", of_both, by<read_kernel>},
           {"threads", "count", "int | None = None", of_both, by<read_threads>}})
    all.push_back(one);
  return all;
}

const std::vector<Keyword>& keywords_known() {
  static const std::vector<Keyword> all = make_keywords();
  return all;
}

bool is_of(Caller caller, const Keyword& keyword) {
  const auto is = [&](unsigned trait) { return (keyword.traits & trait) != 0; };
  switch (caller) {
    case Caller::layer:
      return is(of_layer);
    case Caller::attention:
      return is(of_attention);
    case Caller::backward:
      return is(of_attention) && !is(forward_only);
    case Caller::ranks:
      return is(of_attention) && !is(of_one_process);
    case Caller::backward_over_ranks:
      return is(of_attention) && !is(of_one_process) && !is(forward_only);
    case Caller::layer_over_ranks:
      return is(of_layer) && !is(of_all_heads);
    case Caller::decode_over_ranks:
      return is(of_attention) && (std::string_view(keyword.name) == "sequences" || !is(of_one_process));
  }
  return false;
}

// The arguments before the keywords.
std::vector<const char*> arguments_of(Caller caller) {
  switch (caller) {
    case Caller::backward:
    case Caller::backward_over_ranks:
      return {"out_gradient", "q", "k", "v", "out", "lse", "lse_gradient", "by"};
    case Caller::layer:
    case Caller::layer_over_ranks:
      return {"x", "context", "value"};
    case Caller::decode_over_ranks:
      return {"q", "cache", "lengths"};
    default:
      return {"q", "k", "v"};
  }
}

const Keyword& find_keyword(Caller caller, std::string_view name) {
  for (const Keyword& keyword : keywords_known())
    if (is_of(caller, keyword) && keyword.name == name) return keyword;
  nb::list known;
  for (const char* const argument : arguments_of(caller)) known.append(argument);
  for (const Keyword& keyword : keywords_known())
    if (is_of(caller, keyword)) known.append(keyword.name);
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

std::string signature_of(Caller caller, const Signature& said) {
  std::string text = "def " + said.begin;
  bool has_results = false;
  for (const Keyword& keyword : keywords_known()) {
    if (!is_of(caller, keyword)) continue;
    const bool is_result = (keyword.traits & result) != 0;
    if (is_result && !std::exchange(has_results, true)) text += ", " + said.results;
    if (!is_result) text += std::string(", ") + keyword.name + ": " + keyword.annotation;
  }
  return text + ") -> " + said.returned;
}

std::vector<std::string> overloads_of(Caller caller, const std::string& begin, const char* weights,
                                      const char* given) {
  const std::string no_weights = "return_weights: typing.Literal[False] = False",
                    no_lse = ", return_lse: typing.Literal[False] = False",
                    no_scores = ", return_scores: None = None",
                    stages = "typing.Literal['raw', 'softcapped', 'biased']", pair = "tuple[ArrayT, ArrayT]";
  const auto signature = [&](const std::string& results, const std::string& returned) {
    return signature_of(caller, {begin, results, returned});
  };
  return {signature(no_weights + no_lse + no_scores, "ArrayT"),
          signature("return_weights: typing.Literal[" + std::string(given) + "]" + no_lse + no_scores, pair),
          signature(no_weights + ", return_lse: typing.Literal[True]" + no_scores, pair),
          signature(no_weights + no_lse + ", return_scores: " + stages, pair),
          signature(any_results(weights), "typing.Any")};
}

std::string any_results(const std::string& weights) {
  return "return_weights: " + weights +
         " = False, return_lse: bool = False, return_scores: typing.Literal['raw', 'softcapped', 'biased'] | "
         "None = None";
}

Choices read_choices(Caller caller, const nb::kwargs& keywords) {
  Choices choices;
  if (keywords.size() == 0) return choices;
  for (const auto& [name, value] : keywords) {
    const Keyword& keyword = find_keyword(caller, nb::cast<std::string>(name));
    if (!value.is_none()) keyword.read(choices, keyword.name, value);
  }
  if (choices.options.dropout) choices.options.dropout->seed = choices.seed;
  share_anchor(choices);
  give_front(choices);
  return choices;
}

void define_keywords(nb::module_& m) {
  m.def(
      "keywords_of",
      [](const nb::args& kinds) {
        const auto is_asked_for = [&](const char* kind) {
          return kinds.size() == 0 || std::ranges::any_of(kinds, [&](nb::handle asked) {
                   return nb::cast<std::string>(asked) == kind;
                 });
        };
        nb::list names;
        for (const Keyword& keyword : keywords_known())
          if (is_of(Caller::attention, keyword) && is_asked_for(keyword.kind)) names.append(keyword.name);
        return nb::tuple(names);
      },
      nb::arg("kinds"), nb::sig("def keywords_of(*kinds: str) -> tuple[str, ...]"),
      R"(The keywords of heed.attention whose values are of these kinds, or all, in the order of its signature.

>>> import heed._heed
>>> heed._heed.keywords_of("booleans")
('tree', 'keep', 'hide')
)");
}

}  // namespace heed::python
