// SPDX-License-Identifier: Apache-2.0
// Reads the keyword arguments of heed.KvCache: each has a name and a reader.
#include "cache_options.hpp"

#include <array>
#include <string_view>

#include "views.hpp"

namespace heed::python {

namespace {

struct Words {
  KvCacheConfig config{};
  std::optional<std::string> dtype{}, layout{}, quantize{};
  std::int64_t front = 0;
  std::optional<CacheRotary::When> rotate_at{};
};

// "float32", numpy.float32, numpy.dtype("float32") and torch.float32 all name one.
std::string dtype_name(nb::handle object) {
  if (nb::isinstance<nb::str>(object)) return nb::cast<std::string>(object);
  for (const char* attribute : {"name", "__name__"}) {
    const nb::object name = nb::getattr(object, attribute, nb::none());
    if (nb::isinstance<nb::str>(name)) return nb::cast<std::string>(name);
  }
  std::string text = text_of(object);
  constexpr std::string_view library = "torch.";
  if (text.starts_with(library)) text.erase(0, library.size());
  return text;
}

CacheType read_dtype(const std::string& name) {
  for (const CacheType type : {CacheType::f32, CacheType::f16, CacheType::bf16})
    if (name == word_for(type)) return type;
  throw Error(Error::dtype, "dtype: " + name + " is none of float32, float16, bfloat16" +
                                (name == "int8" ? "; say quantize=\"int8\"" : ""));
}

void read_rotary(Words& words, nb::handle object) {
  if (!nb::isinstance<Rotary>(object)) throw wrong_kind("rotary", object, "a heed.Rotary");
  words.config.rotary = CacheRotary{.rotary = nb::cast<const Rotary&>(object)};
}

void read_rotate_at(Words& words, nb::handle object) {
  const std::string word = read_word("rotate_at", object);
  if (word != "append" && word != "read")
    throw Error(Error::value, "rotate_at: \"" + word + "\" is none of \"append\", \"read\"");
  words.rotate_at = word == "read" ? CacheRotary::When::read : CacheRotary::When::append;
}

struct Keyword {
  std::string_view name;
  void (*read)(Words&, nb::handle);
};

constexpr std::array keywords_known{
    Keyword{"dtype", [](Words& w, nb::handle o) { w.dtype = dtype_name(o); }},
    Keyword{"layout", [](Words& w, nb::handle o) { w.layout = read_word("layout", o); }},
    Keyword{"quantize", [](Words& w, nb::handle o) { w.quantize = read_word("quantize", o); }},
    Keyword{"page_size", [](Words& w, nb::handle o) { w.config.page_size = read_integer("page_size", o); }},
    Keyword{"pages", [](Words& w, nb::handle o) { w.config.pages = read_integer("pages", o); }},
    Keyword{"value_dim", [](Words& w, nb::handle o) { w.config.value_dim = read_integer("value_dim", o); }},
    Keyword{"window",
            [](Words& w, nb::handle o) { w.config.window = CacheWindow{read_integer("window", o)}; }},
    Keyword{"front", [](Words& w, nb::handle o) { w.front = read_integer("front", o); }},
    Keyword{"rotary", read_rotary},
    Keyword{"rotate_at", read_rotate_at},
    Keyword{"device", [](Words& w, nb::handle o) { w.config.device = read_device(o); }}};

const Keyword& find_keyword(std::string_view name) {
  for (const Keyword& keyword : keywords_known)
    if (keyword.name == name) return keyword;
  nb::list known;
  for (const char* argument : {"batch", "kv_heads", "capacity", "dim"}) known.append(argument);
  for (const Keyword& keyword : keywords_known)
    known.append(nb::str(keyword.name.data(), keyword.name.size()));
  throw unknown_keyword(std::string(name), known);
}

void decide_type(Words& words) {
  if (words.quantize) {
    if (*words.quantize != "int8")
      throw Error(Error::value, "quantize: \"" + *words.quantize + "\" is not \"int8\"");
    if (words.dtype)
      throw Error(Error::value, "dtype: " + *words.dtype + ", but quantize says int8; only one can be");
    words.config.type = CacheType::int8;
  } else if (words.dtype) {
    words.config.type = read_dtype(*words.dtype);
  }
}

void decide_layout(Words& words) {
  constexpr std::int64_t usual_page = 64;
  const std::string layout = words.layout.value_or(words.config.page_size ? "paged" : "contiguous");
  if (layout == "paged") {
    if (!words.config.page_size) words.config.page_size = usual_page;
  } else if (layout != "contiguous") {
    throw Error(Error::value, "layout: \"" + layout + "\" is none of \"contiguous\", \"paged\"");
  } else if (words.config.page_size) {
    throw Error(Error::value, "page_size: " + std::to_string(*words.config.page_size) +
                                  ", but the layout is contiguous: one page per sequence");
  }
}

void decide_window_and_rotary(Words& words) {
  if (words.config.window)
    words.config.window->front = words.front;
  else if (words.front != 0)
    throw Error(Error::value, "front: " + std::to_string(words.front) + ", but there is no window");
  if (words.config.rotary)
    words.config.rotary->when = words.rotate_at.value_or(CacheRotary::When::append);
  else if (words.rotate_at == CacheRotary::When::read)
    throw Error(Error::value, "rotate_at: \"read\", but there is no rotary");
}

}  // namespace

Device read_device(nb::handle object) {
  const std::string word = read_word("device", object);
  if (word != "cpu" && word != "cuda")
    throw Error(Error::value, "device: \"" + word + "\" is none of \"cpu\", \"cuda\"");
  return word == "cuda" ? Device::cuda : Device::cpu;
}

KvCacheConfig read_cache_options(const nb::kwargs& keywords) {
  Words words;
  for (const auto& [name, value] : keywords) {
    const Keyword& keyword = find_keyword(nb::cast<std::string>(name));
    if (!value.is_none()) keyword.read(words, value);
  }
  decide_type(words);
  decide_layout(words);
  decide_window_and_rotary(words);
  return words.config;
}

const char* word_for(CacheType type) {
  constexpr std::array names{"float32", "float16", "bfloat16", "int8"};
  return names.at(static_cast<std::size_t>(type));
}

std::string in_words(const KvCacheConfig& config) {
  std::string text = "KvCache(";
  const auto say = [&text](const char* name, std::int64_t value) {
    text += std::string(name) + "=" + std::to_string(value) + ", ";
  };
  say("batch", config.batch);
  say("kv_heads", config.kv_heads);
  say("capacity", config.capacity);
  say("dim", config.dim);
  if (*config.value_dim != config.dim) say("value_dim", *config.value_dim);
  text += std::string(config.type == CacheType::int8 ? "quantize" : "dtype") + "='" + word_for(config.type) +
          "', ";
  if (config.window) {
    say("window", config.window->length);
    say("front", config.window->front);
  }
  say("page_size", *config.page_size);
  return text + "pages=" + std::to_string(*config.pages) + ")";
}

}  // namespace heed::python
