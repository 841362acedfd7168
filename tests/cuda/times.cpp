// SPDX-License-Identifier: Apache-2.0
// How long calls of every kind take on this GPU: a line for each, its name and the microseconds of one, the
// least of some graphs' replays. `scripts/gpu-gate --before` runs a program of before and this one in turns.
// Words choose cases by their names.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "heed/heed.hpp"
#include "on_device/brought.hpp"

namespace heed::cuda::test {
namespace {

// Memory of the device, of numbers between -2 and 2, or of zeros.
class OnDevice {
 public:
  OnDevice(Shape shape, DType type, std::uint32_t seed) : shape_(shape), type_(type) {
    const auto elements = static_cast<std::size_t>(shape.elements());
    std::vector<unsigned char> bytes(elements * bytes_of(type));
    for (std::size_t n = 0; n < elements && seed != 0; ++n) {
      seed = seed * 1664525u + 1013904223u;
      const float x = static_cast<float>(static_cast<std::int32_t>(seed)) * 0x1p-30f;
      std::uint32_t bits;
      std::memcpy(&bits, &x, 4);
      if (type == DType::f16)  // as many bits of x as f16 has; below 2^-14 it is 0
        bits = (bits & 0x7FFFFFFFu) < 0x38800000u
                   ? 0
                   : (bits >> 16 & 0x8000u) | ((bits & 0x7FFFFFFFu) - 0x38000000u) >> 13;
      else if (type == DType::bf16)
        bits >>= 16;
      std::memcpy(&bytes[n * bytes_of(type)], &bits, bytes_of(type));
    }
    void* at = nullptr;
    expect_success(cudaMalloc(&at, bytes.size()));
    memory_.reset(at);
    expect_success(cudaMemcpy(at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  MutableView view() const { return {memory_.get(), shape_, type_, Device::cuda}; }

 private:
  Shape shape_;
  DType type_;
  OnDeviceBytes memory_;
};

struct Sizes {
  std::int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;
};
struct Case {
  std::string name;
  Sizes of;
  DType type;
  enum class Options : std::uint8_t {
    none,
    causal,
    padding,
    softcap,
    alibi,
    bias,
    dropout,
    saved,
    backward
  } options;
};

std::vector<Case> cases() {
  using enum Case::Options;
  constexpr Sizes plain{1, 32, 8, 4096, 4096, 128, 128};
  const auto of = [](std::int64_t dim, std::int64_t value_dim) {
    return Sizes{1, 32, 8, 4096, 4096, dim, value_dim};
  };
  constexpr DType bf16 = DType::bf16, f16 = DType::f16;
  return {{"prefill 128", plain, bf16, none},
          {"prefill 128 causal", plain, bf16, causal},
          {"prefill 128 causal, saved", plain, bf16, saved},
          {"prefill 128 f16 causal", plain, f16, causal},
          {"prefill 128 of 16384", {1, 64, 8, 16384, 16384, 128, 128}, bf16, none},
          {"prefill 64 causal", {1, 64, 64, 4096, 4096, 64, 64}, bf16, causal},
          {"prefill 72 causal", of(72, 72), bf16, causal},
          {"prefill 80 causal", of(80, 80), bf16, causal},
          {"prefill 96 causal", of(96, 96), bf16, causal},
          {"prefill 104 causal", of(104, 104), bf16, causal},
          {"prefill 104 causal of 1024", {4, 32, 8, 1024, 1024, 104, 104}, bf16, causal},
          {"prefill 112 causal", of(112, 112), bf16, causal},
          {"prefill 192/128 causal", of(192, 128), bf16, causal},
          {"prefill 256 causal", of(256, 256), bf16, causal},
          {"prefill 128 padding", {4, 32, 8, 2048, 2048, 128, 128}, bf16, padding},
          {"prefill 128 softcap causal", plain, bf16, softcap},
          {"prefill 64 softcap causal", of(64, 64), bf16, softcap},
          {"prefill 128 alibi causal", plain, bf16, alibi},
          {"prefill 128 bias", plain, bf16, bias},
          {"prefill 128 dropout causal", plain, bf16, dropout},
          {"short 16 x 512 causal", {16, 32, 8, 512, 512, 128, 128}, bf16, causal},
          {"128 rows of 8192", {1, 32, 8, 128, 8192, 128, 128}, bf16, causal},
          {"decode 64 x 4096", {64, 32, 8, 1, 4096, 128, 128}, bf16, none},
          {"decode 1 x 8192", {1, 32, 8, 1, 8192, 128, 128}, bf16, none},
          {"backward 128 causal", plain, bf16, backward},
          {"f32 causal", {1, 16, 16, 2048, 2048, 64, 64}, DType::f32, causal}};
}

float least_microseconds(const std::function<void(cudaStream_t)>& call) {
  cudaStream_t stream;
  expect_success(cudaStreamCreate(&stream));
  for (int n = 0; n < 3; ++n) call(stream);
  expect_success(cudaStreamSynchronize(stream));
  constexpr int calls = 5, replays = 6;
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  expect_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int n = 0; n < calls; ++n) call(stream);
  expect_success(cudaStreamEndCapture(stream, &graph));
  expect_success(cudaGraphInstantiate(&ready, graph, 0));
  cudaEvent_t begin, end;
  expect_success(cudaEventCreate(&begin)), expect_success(cudaEventCreate(&end));
  float least = 1e30f;
  for (int n = 0; n < replays; ++n) {
    expect_success(cudaEventRecord(begin, stream));
    expect_success(cudaGraphLaunch(ready, stream));
    expect_success(cudaEventRecord(end, stream));
    expect_success(cudaEventSynchronize(end));
    float milliseconds = 0;
    expect_success(cudaEventElapsedTime(&milliseconds, begin, end));
    least = std::min(least, milliseconds * 1000 / calls);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end), cudaGraphExecDestroy(ready), cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return least;
}

float time(const Case& it) {
  using enum Case::Options;
  const Sizes& n = it.of;
  const OnDevice q({n.batch, n.heads, n.queries, n.dim}, it.type, 1),
      k({n.batch, n.kv_heads, n.keys, n.dim}, it.type, 2),
      v({n.batch, n.kv_heads, n.keys, n.value_dim}, it.type, 3),
      out({n.batch, n.heads, n.queries, n.value_dim}, it.type, 0),
      lse({n.batch, n.heads, n.queries, 1}, DType::f32, 0);
  const Inputs inputs{.q = q.view(), .k = k.view(), .v = v.view()};
  Outputs outputs{.out = out.view()};
  Options options;
  const bool is_causal = it.options != none && it.options != padding && it.options != bias;
  if (is_causal) options.masks = {Causal{Align::ends}};
  std::vector<std::int32_t> lengths;
  for (std::int64_t b = 0; b < n.batch; ++b) lengths.push_back(static_cast<std::int32_t>(n.keys - 100 * b));
  const std::vector<unsigned char> shown(static_cast<std::size_t>(n.batch * n.keys), 1);
  void* mask = nullptr;
  expect_success(cudaMalloc(&mask, shown.size()));
  const OnDeviceBytes owns_mask(mask);
  expect_success(cudaMemcpy(mask, shown.data(), shown.size(), cudaMemcpyHostToDevice));
  for (std::int64_t b = 0; b < n.batch; ++b)
    expect_success(cudaMemset(static_cast<char*>(mask) + (b + 1) * n.keys - 100 * b, 0,
                              static_cast<std::size_t>(100 * b)));
  if (it.options == padding)
    options.masks = {Keep{{static_cast<const bool*>(mask),
                           {n.batch, 1, 1, n.keys},
                           bhsd({n.batch, 1, 1, n.keys}),
                           Device::cuda}}};
  if (it.options == softcap) options.softcap = 30;
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < n.heads; ++h) slopes.push_back(1.0f / static_cast<float>(h + 1));
  if (it.options == alibi) options.alibi = Alibi{.slopes = slopes};
  if (it.options == dropout) options.dropout = Dropout{.drop_probability = 0.1f, .seed = 1};
  const OnDevice added({1, n.heads, it.options == bias ? n.queries : 1, n.keys}, DType::bf16, 4);
  if (it.options == bias) options.bias = View(added.view());
  if (it.options == saved || it.options == backward) outputs.log_sum_exp = lse.view();
  if (it.options != backward)
    return least_microseconds([&](cudaStream_t stream) {
      options.stream = stream;
      attention(inputs, outputs, options);
    });
  attention(inputs, outputs, options);
  const OnDevice dq({n.batch, n.heads, n.queries, n.dim}, it.type, 0),
      dk({n.batch, n.kv_heads, n.keys, n.dim}, it.type, 0),
      dv({n.batch, n.kv_heads, n.keys, n.value_dim}, it.type, 0),
      dout({n.batch, n.heads, n.queries, n.value_dim}, it.type, 5);
  return least_microseconds([&](cudaStream_t stream) {
    options.stream = stream;
    attention_backward(inputs, {.out = out.view(), .log_sum_exp = lse.view()},
                       {.out = dout.view(), .q = dq.view(), .k = dk.view(), .v = dv.view()}, options);
  });
}

}  // namespace
}  // namespace heed::cuda::test

int main(int count, char** words) {
  using namespace heed::cuda::test;
  for (const Case& it : cases()) {
    bool is_wanted = count == 1;
    for (int n = 1; n < count; ++n) is_wanted = is_wanted || it.name.find(words[n]) != std::string::npos;
    if (!is_wanted) continue;
    try {
      std::printf("%.1f %s\n", static_cast<double>(time(it)), it.name.c_str());
    } catch (const std::exception& error) {
      std::printf("-1 %s: %s\n", it.name.c_str(), error.what());
    }
    std::fflush(stdout);
  }
}
