// SPDX-License-Identifier: Apache-2.0
// heed for C, and for every language that calls C. docs/c.md teaches it; the fields are those of the C++
// headers, where each is explained. Not part of heed.hpp.
//
// Every struct of zeros means the defaults. Those that may grow begin with their `size`, sizeof of the struct
// as the caller knows it: fields beyond it are taken for zeros, so a caller may know fewer than the library.
// Fields the library does not know must be zero. Numbers and layouts given here do not change.
#ifndef HEED_C_H
#define HEED_C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HEED_C_API __attribute__((visibility("default")))
#else
#define HEED_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// What every call says.
typedef int32_t heed_status;
enum {
  HEED_OK = 0,
  HEED_ERROR_SHAPE = 1,        // extents that do not fit together, negative strides
  HEED_ERROR_DTYPE = 2,        // an element type that is not accepted here
  HEED_ERROR_DEVICE = 3,       // memory of another device
  HEED_ERROR_VALUE = 4,        // a number outside its domain, NULL where something is needed
  HEED_ERROR_AMBIGUOUS = 5,    // a call with two readings
  HEED_ERROR_OVERLAP = 6,      // an output that shares memory with something
  HEED_ERROR_UNSUPPORTED = 7,  // a kernel that does not exist or cannot take this problem
  HEED_ERROR_CAPACITY = 8,     // no room in a cache
  HEED_ERROR_FILE = 9,         // a file that cannot be read or written, or that is damaged
  HEED_ERROR_BUSY = 10,        // a sequence of a cache that another thread's call is using
  HEED_ERROR_MEMORY = 11,      // the machine has none left
  HEED_ERROR_OTHER = 12        // anything else; the sentence says what
};

// Why this thread's last call failed: the argument, the rule and what was found. Empty if it did not. Valid
// until the thread's next call. A call that fails has written nothing.
HEED_C_API const char* heed_last_error(void);

HEED_C_API const char* heed_version(void);  // of the library that is linked
HEED_C_API void heed_free(void* text);      // what a function here gave the caller to own; NULL is nothing

// In [1, 4096]; the number never changes a bit of any result.
HEED_C_API heed_status heed_set_num_threads(int threads);
HEED_C_API int heed_num_threads(void);

// Threads of the caller's own. run() calls task(state, i) once for every i in [0, tasks), on any threads, and
// returns when all have returned.
typedef struct heed_executor heed_executor;

typedef struct heed_executor_config {
  size_t size;
  void* context;  // what run() gets
  void (*run)(void* context, size_t tasks, void (*task)(void* state, size_t i), void* state);
  int32_t concurrency;  // how many tasks run at once; 0: heed_num_threads()
  int32_t reserved;
} heed_executor_config;

HEED_C_API heed_status heed_executor_create(const heed_executor_config* config, heed_executor** executor);
HEED_C_API void heed_executor_destroy(heed_executor* executor);  // NULL is nothing
// Used from now on, until another one is; NULL: heed's own threads. It must outlive every call made while it
// is set. heed_options has that of one call.
HEED_C_API heed_status heed_set_executor(heed_executor* executor);

typedef int32_t heed_dtype;
enum { HEED_DTYPE_F32 = 0, HEED_DTYPE_F16 = 1, HEED_DTYPE_BF16 = 2, HEED_DTYPE_F64 = 3 };

typedef int32_t heed_device;
enum { HEED_DEVICE_CPU = 0, HEED_DEVICE_CUDA = 1 };

// Packed with heads outside length, packed with length outside heads, or as `stride` says, which is zeros
// otherwise.
typedef int32_t heed_layout;
enum { HEED_LAYOUT_BHSD = 0, HEED_LAYOUT_BSHD = 1, HEED_LAYOUT_STRIDED = 2 };

// Tensors are views that own nothing. All four extents are said; 0 is an axis without entries.
typedef struct heed_shape {
  int64_t batch, heads, length, dim;
} heed_shape;

// How far apart neighbours along each axis lie, counted in elements.
typedef struct heed_strides {
  int64_t batch, heads, length, dim;
} heed_strides;

// A view of zeros is one that is not given.
typedef struct heed_view {
  const void* data;
  heed_shape shape;
  heed_strides stride;
  heed_dtype dtype;
  heed_device device;
  heed_layout layout;
  int32_t reserved;
} heed_view;

typedef struct heed_mutable_view {
  void* data;
  heed_shape shape;
  heed_strides stride;
  heed_dtype dtype;
  heed_device device;
  heed_layout layout;
  int32_t reserved;
} heed_mutable_view;

typedef struct heed_bool_view {
  const bool* data;
  heed_shape shape;
  heed_strides stride;
  heed_layout layout;
  heed_device device;  // the call's, or the CPU
} heed_bool_view;

typedef struct heed_int64s {
  const int64_t* data;
  size_t count;
} heed_int64s;

typedef struct heed_int32s {
  const int32_t* data;
  size_t count;
} heed_int32s;

typedef struct heed_floats {
  const float* data;
  size_t count;
} heed_floats;

// A query sees a key only if every mask in the list lets it.
typedef int32_t heed_mask_kind;
enum {
  HEED_MASK_CAUSAL = 1,       // align
  HEED_MASK_WINDOW = 2,       // align, left, right, front
  HEED_MASK_KEY_LENGTHS = 3,  // valid
  HEED_MASK_KEEP = 4,         // where
  HEED_MASK_HIDE = 5,         // where
  HEED_MASK_TREE = 6,         // where
  HEED_MASK_DOCUMENT = 7      // ids, query_ids, align
};

// Where the two sequences coincide; must be said when there are not as many queries as keys.
typedef int32_t heed_align;
enum { HEED_ALIGN_STARTS = 1, HEED_ALIGN_ENDS = 2 };

// Fields that the kind does not name are zeros.
typedef struct heed_mask {
  heed_mask_kind kind;
  heed_align align;
  int64_t left, right, front;
  heed_int32s valid;
  heed_bool_view where;
  heed_int32s ids, query_ids;
} heed_mask;

typedef struct heed_masks {
  const heed_mask* data;
  size_t count;
  size_t size;  // sizeof(heed_mask)
} heed_masks;

typedef struct heed_cache heed_cache;

typedef struct heed_inputs {
  size_t size;
  heed_view q, k, v;
  const heed_cache* cache;  // in place of k and v
  heed_int64s sequences, query_starts, key_starts, query_counts;
} heed_inputs;

typedef int32_t heed_stage;
enum { HEED_STAGE_RAW = 0, HEED_STAGE_SOFTCAPPED = 1, HEED_STAGE_BIASED = 2 };

typedef struct heed_scores {
  heed_mutable_view into;
  heed_stage stage;
  int32_t reserved;
} heed_scores;

typedef struct heed_outputs {
  size_t size;
  heed_mutable_view out;
  heed_mutable_view weights, log_sum_exp;
  heed_scores scores;
} heed_outputs;

// What heed_attention wrote, to be read.
typedef struct heed_results {
  size_t size;
  heed_view out;
  heed_view weights, log_sum_exp;
} heed_results;

typedef struct heed_dropout {
  float drop_probability;
  int32_t reserved;
  uint64_t seed;
} heed_dropout;

typedef int32_t heed_head_map;
enum { HEED_HEAD_MAP_INTERLEAVED = 0, HEED_HEAD_MAP_TILED = 1 };

typedef struct heed_options {
  size_t size;
  heed_masks masks;
  heed_view bias, sink;
  float scale;        // with has_scale; default: 1/sqrt(dim)
  int32_t has_scale;  // 0 or 1; 0 is a scale as well
  float softcap;      // 0: none
  heed_head_map head_map;
  heed_dropout dropout;
  const char* kernel;        // as heed_explain lists them; NULL: the plan chooses
  heed_floats alibi_slopes;  // (heads), or (batch, heads); none: no ALiBi
  heed_align alibi_align;
  int32_t threads;  // for this call; 0: heed_num_threads()
  void* stream;     // a cudaStream_t, on HEED_DEVICE_CUDA alone; NULL: the device's legacy stream
  // Since 0.3, in place of scale (with has_scale) and softcap: for f64, where a float is too short. 0: those.
  double scale_f64, softcap_f64;
  double drop_probability_f64;  // since 0.4, in place of dropout.drop_probability
  heed_executor* executor;      // since 0.4: whose threads this call runs on; NULL: heed_set_executor()'s
} heed_options;

// `options` may be NULL here and below: the defaults.
HEED_C_API heed_status heed_attention(const heed_inputs* inputs, const heed_outputs* outputs,
                                      const heed_options* options);

// Which kernel is taken, and why the others are not, a line each. heed_free(*text).
HEED_C_API heed_status heed_explain(const heed_inputs* inputs, const heed_outputs* outputs,
                                    const heed_options* options, char** text);

// Joins results over disjoint sets of keys; both have out and log_sum_exp.
HEED_C_API heed_status heed_merge(const heed_outputs* into, const heed_results* other);

// What heed_attention wrote for the same inputs and options, or what heed_merge made of several such results.
typedef struct heed_saved {
  size_t size;
  heed_view out, log_sum_exp;
} heed_saved;

typedef struct heed_gradients {
  size_t size;
  heed_view out;                          // read: of the loss by each result
  heed_view log_sum_exp;                  // not given: 0
  heed_mutable_view q, k, v, bias, sink;  // written, where given
  int32_t accumulate;                     // 0 or 1; 1: add to what is there
  int32_t reserved;
} heed_gradients;

// The gradients of heed_attention. Keys and values are views here, not a cache.
HEED_C_API heed_status heed_attention_backward(const heed_inputs* inputs, const heed_saved* saved,
                                               const heed_gradients* gradients, const heed_options* options);

// As heed_explain, of the kernels for gradients. heed_free(*text).
HEED_C_API heed_status heed_explain_backward(const heed_inputs* inputs, const heed_saved* saved,
                                             const heed_gradients* gradients, const heed_options* options,
                                             char** text);

// Rotary position embedding.
typedef int32_t heed_rotary_pairs;
enum { HEED_ROTARY_PAIRS_HALVES = 0, HEED_ROTARY_PAIRS_ADJACENT = 1 };

typedef int32_t heed_scaling_kind;
enum {
  HEED_SCALING_NONE = 0,
  HEED_SCALING_LINEAR = 1,   // factor
  HEED_SCALING_DYNAMIC = 2,  // factor, original_length
  HEED_SCALING_YARN = 3,     // those, beta_fast, beta_slow, untruncated, attention_factor
  HEED_SCALING_LLAMA3 = 4,   // factor, original_length, low_frequency_factor, high_frequency_factor
  HEED_SCALING_LONGROPE = 5  // factor, original_length, short_factors, long_factors, attention_factor
};

// Fields that the kind does not name are zeros; 0 is the default where there is one.
typedef struct heed_scaling {
  heed_scaling_kind kind;
  float factor;
  int64_t original_length;
  float beta_fast, beta_slow;  // 32 and 1
  float attention_factor;
  int32_t untruncated;                                // 1: the ramp may begin and end within a pair
  float low_frequency_factor, high_frequency_factor;  // 1 and 4
  heed_floats short_factors, long_factors;
} heed_scaling;

typedef struct heed_rotary {
  size_t size;
  float base;  // 0: 10000
  heed_rotary_pairs pairs;
  int64_t dims;  // how many leading dimensions rotate; 0: the whole head
  heed_scaling scaling;
} heed_rotary;

// Turns x in place. positions: one per token, or one per batch entry and token. lengths, of the sequences
// that the tokens belong to, for scalings that go by them: one, one per batch entry, or NULL. rotary may be
// NULL.
HEED_C_API heed_status heed_rotate(const heed_mutable_view* x, const heed_int64s* positions,
                                   const heed_rotary* rotary, const heed_int64s* lengths);

// The keys and values of sequences that grow. Every call that changes them does all it says or nothing. Calls
// on different sequences of a cache may run at once; a change beside another call on its sequence is refused.
typedef int32_t heed_cache_type;
enum { HEED_CACHE_TYPE_F32 = 0, HEED_CACHE_TYPE_F16 = 1, HEED_CACHE_TYPE_BF16 = 2, HEED_CACHE_TYPE_INT8 = 3 };

typedef int32_t heed_rotary_when;
enum { HEED_ROTARY_WHEN_APPEND = 0, HEED_ROTARY_WHEN_READ = 1 };

typedef struct heed_cache_window {
  int64_t length, front;
} heed_cache_window;

typedef struct heed_cache_config {
  size_t size;
  int64_t batch;  // sequences at the start; 0: one
  int64_t kv_heads;
  int64_t capacity;  // tokens a sequence may hold
  int64_t dim;
  int64_t value_dim;         // 0: dim
  int64_t page_size;         // 0: one page of `capacity` tokens per sequence
  int64_t pages;             // 0: enough for `batch` full sequences
  heed_cache_window window;  // length 0: none
  heed_cache_type type;
  heed_rotary_when rotary_when;
  const heed_rotary* rotary;  // NULL: the cache rotates nothing
} heed_cache_config;

HEED_C_API heed_status heed_cache_create(const heed_cache_config* config, heed_cache** cache);
HEED_C_API void heed_cache_destroy(heed_cache* cache);  // NULL is nothing

// For every sequence of the cache, all tokens or the first counts[b] of them; counts may be NULL.
HEED_C_API heed_status heed_cache_append(heed_cache* cache, const heed_view* k, const heed_view* v,
                                         const heed_int64s* counts);
HEED_C_API heed_status heed_cache_append_to(heed_cache* cache, int64_t sequence, const heed_view* k,
                                            const heed_view* v);
HEED_C_API heed_status heed_cache_truncate(heed_cache* cache, int64_t sequence, int64_t length);

// A new sequence with the tokens of this one, whose pages they share; its number.
HEED_C_API heed_status heed_cache_fork(heed_cache* cache, int64_t sequence, int64_t* number);
// With its first `length` tokens.
HEED_C_API heed_status heed_cache_fork_at(heed_cache* cache, int64_t sequence, int64_t length,
                                          int64_t* number);
HEED_C_API heed_status heed_cache_add(heed_cache* cache, int64_t* number);  // a new, empty sequence
HEED_C_API heed_status heed_cache_release(heed_cache* cache, int64_t sequence);

HEED_C_API heed_status heed_cache_length(const heed_cache* cache, int64_t sequence, int64_t* length);
// Of all sequences at one moment, -1 where released. `lengths` has room for `room` of them, and is NULL where
// only their number is asked for.
HEED_C_API heed_status heed_cache_lengths(const heed_cache* cache, int64_t* lengths, size_t room,
                                          size_t* sequences);

// Copies what attention sees of a sequence; k and v are (1, kv_heads, length, ...).
HEED_C_API heed_status heed_cache_read(const heed_cache* cache, int64_t sequence, const heed_mutable_view* k,
                                       const heed_mutable_view* v);
HEED_C_API heed_status heed_cache_save(const heed_cache* cache, const char* path);
HEED_C_API heed_status heed_cache_load(const char* path, heed_cache** cache);

// Projections around attention.
typedef struct heed_layer heed_layer;

typedef struct heed_layer_config {
  size_t size;
  int64_t model_dim, heads;
  int64_t kv_heads;        // 0: heads
  int64_t head_dim;        // 0: model_dim / heads
  int64_t value_head_dim;  // 0: head_dim
  int64_t key_dim;         // 0: model_dim
  int64_t value_dim;       // 0: key_dim
  float drop_probability;  // of the attention weights, in training only
  heed_head_map head_map;
  const heed_rotary* rotary;  // NULL: none
} heed_layer_config;

// Copied. Matrices are (1, 1, rows, columns), y = x * W^T + b; biases are (1, 1, 1, entries), or not given.
typedef struct heed_layer_weights {
  size_t size;
  heed_view w_q, w_k, w_v, w_o;
  heed_view b_q, b_k, b_v, b_o;
} heed_layer_weights;

// What a call makes on the way, for heed_layer_backward to read: the caller's, filled anew by every call that
// is given it.
typedef struct heed_activations heed_activations;
HEED_C_API heed_status heed_activations_create(heed_activations** activations);
HEED_C_API void heed_activations_destroy(heed_activations* activations);  // NULL is nothing

// Everything the layer reads.
typedef struct heed_call {
  size_t size;
  heed_view x;               // (batch, 1, queries, model_dim)
  heed_view context, value;  // not given: x, context
  heed_cache* cache;         // in place of both: gets the tokens of x
  heed_int64s sequences, counts, positions, key_positions;
  uint64_t dropout_seed;
  heed_activations* activations;  // since 0.4; NULL: heed_layer_backward computes them again
} heed_call;

typedef int32_t heed_mode;
enum { HEED_MODE_EVAL = 0, HEED_MODE_TRAIN = 1 };

HEED_C_API heed_status heed_layer_create(const heed_layer_config* config, const heed_layer_weights* weights,
                                         heed_layer** layer);
// From a safetensors file, by the names after `prefix`, which may be NULL.
HEED_C_API heed_status heed_layer_load(const char* path, const char* prefix, const heed_layer_config* config,
                                       heed_layer** layer);
// Layer `layer` of a folder as Hugging Face's transformers saves a model.
HEED_C_API heed_status heed_layer_from_pretrained(const char* folder, int64_t layer, heed_layer** made);
HEED_C_API void heed_layer_destroy(heed_layer* layer);  // NULL is nothing

// out is (batch, 1, queries, model_dim). Threads may call one layer at once.
HEED_C_API heed_status heed_layer_call(const heed_layer* layer, const heed_call* call,
                                       const heed_outputs* outputs, const heed_options* options);
HEED_C_API heed_status heed_layer_set_mode(heed_layer* layer, heed_mode mode);

// The gradients of a loss by what heed_layer_call read.
typedef struct heed_layer_gradients {
  size_t size;
  heed_view out;                                    // read: of the loss by outputs.out
  heed_view log_sum_exp;                            // not given: 0
  heed_mutable_view x, context, value, bias, sink;  // written, where given
  int32_t accumulate;                               // 0 or 1; 1: add to what is there
  int32_t skip_parameters;                          // 0 or 1; 1: the weights are frozen
} heed_layer_gradients;

// For the same call, options, mode and weights as heed_layer_call: writes what is given, and adds to the
// gradients by the weights. No other call uses the layer meanwhile. There is no gradient by a cache.
HEED_C_API heed_status heed_layer_backward(heed_layer* layer, const heed_call* call,
                                           const heed_layer_gradients* gradients,
                                           const heed_options* options);

// Numbers of a layer where they lie: matrices are (1, 1, rows, columns), biases (1, 1, 1, entries), zeros
// where it has none.
typedef struct heed_parameters {
  size_t size;
  heed_mutable_view w_q, w_k, w_v, w_o;
  heed_mutable_view b_q, b_k, b_v, b_o;
} heed_parameters;

// The weights, for an optimiser to change; heed_layer_update makes the copies anew that calls read.
HEED_C_API heed_status heed_layer_get_parameters(heed_layer* layer, heed_parameters* parameters);
HEED_C_API heed_status heed_layer_update(heed_layer* layer);
// What heed_layer_backward has added up since heed_layer_zero_gradients, in f32.
HEED_C_API heed_status heed_layer_get_gradients(heed_layer* layer, heed_parameters* gradients);
HEED_C_API heed_status heed_layer_zero_gradients(heed_layer* layer);

// Every default filled in, up to config->size. Its rotary belongs to the layer.
HEED_C_API heed_status heed_layer_get_config(const heed_layer* layer, heed_layer_config* config);
// How many keys a query of a pretrained layer sees, its own included; 0: all. It is for a window mask beside
// the causal one: left = *keys - 1.
HEED_C_API heed_status heed_layer_sliding_window(const heed_layer* layer, int64_t* keys);

#ifdef __cplusplus
}
#endif

#endif
