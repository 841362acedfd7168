// SPDX-License-Identifier: Apache-2.0
// attention() over memory of the device: the plan chooses among its kernels, calls go to the caller's stream
// and into graphs, and what does not fit together is refused.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "claims.hpp"
#include "heed/attention.hpp"
#include "on_device/brought.hpp"

namespace heed::cuda::test {
namespace {

using cases::Call;
using cases::Results;
using cases::Tensor;
using cases::Wants;
using claims::expect;

Call plain_call(DType dtype, std::int64_t queries, std::int64_t keys = 300) {
  Call call{.q = Tensor::random({2, 4, queries, 64}, 1, 3, dtype),
            .k = Tensor::random({2, 2, keys, 64}, 2, 2, dtype),
            .v = Tensor::random({2, 2, keys, 64}, 3, 2, dtype)};
  call.causal = Causal{Align::ends};
  return call;
}

bool same(const Results& a, const Results& b) {
  return a.out.memory() == b.out.memory() &&
         (!a.log_sum_exp || a.log_sum_exp->memory() == b.log_sum_exp->memory());
}

Results on_device(const Call& call, const Wants& wants, Brought::Masks masks = Brought::Masks::on_the_device,
                  cudaStream_t stream = nullptr) {
  Results results(call, wants);
  Brought there;
  Options options = there.options(call.options(), masks);
  options.stream = stream;
  attention(there.inputs(call.inputs()), there.outputs(results.outputs()), options);
  there.fetch();
  return results;
}

void expect_refused(Error::Code code, const std::string& sentence, const std::function<void()>& call) {
  try {
    call();
    expect(false, "is not refused with: ", sentence);
  } catch (const Error& error) {
    expect(error.what() == sentence && error.code == code, "is refused with: ", error.what());
  }
}

CLAIM(the_device_takes_each_call_by_the_kernel_for_it) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t queries : {1, 100}) {
      const Call call = plain_call(dtype, queries);
      Results results(call, {});
      Brought there;
      const auto expect_taken = [&](const std::string& kernel, const Options& options) {
        const std::string lines =
            explain(there.inputs(call.inputs()), there.outputs(results.outputs()), options);
        expect(lines.find(kernel + ": taken") != std::string::npos, "not ", kernel, ":\n", lines);
      };
      Options options = there.options(call.options());
      expect_taken(dtype == DType::f32 ? "cuda.exact.sm80"
                   : queries == 1      ? "cuda.decode.sm90"
                                       : "cuda.prefill.sm90",
                   options);
      options.masks.push_back(Window{.left = 9, .align = Align::ends, .front = 3});
      expect_taken(dtype == DType::f32 ? "cuda.exact.sm80" : "cuda.general.sm80", options);
    }
}

CLAIM(the_device_splits_the_keys_of_few_queries) {
  Call call = plain_call(DType::bf16, 40, 5000);
  call.softcap = 3.0f;  // without it prefill cuts them
  Results results(call, {});
  Brought there;
  const std::string lines =
      explain(there.inputs(call.inputs()), there.outputs(results.outputs()), there.options(call.options()));
  expect(lines.find("cuda.split.sm80: taken") != std::string::npos, lines);
}

// Masks of booleans may lie on the device or not.
CLAIM(the_device_gives_the_bits_of_the_cpu_in_f32) {
  for (const std::uint64_t seed : cases::seeds(1, 60)) {
    const Call call = cases::random_call(seed, {.dropout = true});
    if (call.q.dtype() != DType::f32) continue;
    const Results wanted = cases::run(call, {.log_sum_exp = true}, "cpu.prefill.scalar");
    for (const auto masks : {Brought::Masks::on_the_device, Brought::Masks::where_they_are})
      expect(same(on_device(call, {.log_sum_exp = true}, masks), wanted), "seed ", seed, " (",
             cases::describe(call), ")");
  }
}

CLAIM(the_device_runs_calls_of_several_threads_on_their_streams) {
  const Call prefill = plain_call(DType::bf16, 200), decode = plain_call(DType::bf16, 1, 3000),
             exact = plain_call(DType::f32, 3, 3000);
  const Call* const calls[] = {&prefill, &decode, &exact};
  std::vector<Results> wanted;
  for (const Call* call : calls) wanted.push_back(on_device(*call, {}));
  std::vector<int> wrong(6);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      cudaStream_t stream = nullptr;
      expect_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      for (int n = 0; n < 20; ++n) {
        const std::size_t which = (t + static_cast<std::size_t>(n)) % 3;
        wrong[t] += !same(on_device(*calls[which], {}, {}, stream), wanted[which]);
      }
      expect_success(cudaStreamDestroy(stream));
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < wrong.size(); ++t)
    expect(wrong[t] == 0, wrong[t], " calls of thread ", t, " differ");
}

// What is done on a stream of its own, as a graph that is ready to be replayed there.
class CapturedStream {
 public:
  explicit CapturedStream(const std::function<void(cudaStream_t)>& body) {
    expect_success(cudaStreamCreate(&stream_));
    cudaGraph_t graph = nullptr;
    expect_success(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    body(stream_);
    expect_success(cudaStreamEndCapture(stream_, &graph));
    expect_success(cudaGraphInstantiate(&ready_, graph, 0));
    expect_success(cudaGraphDestroy(graph));
  }
  CapturedStream(const CapturedStream&) = delete;
  CapturedStream& operator=(const CapturedStream&) = delete;
  ~CapturedStream() {
    cudaGraphExecDestroy(ready_);
    cudaStreamDestroy(stream_);
  }
  void replay() const { expect_success(cudaGraphLaunch(ready_, stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

// A graph of two calls over NaN.
struct CapturedCalls {
  explicit CapturedCalls(const Call& call)
      : results(call, {}),
        inputs(there.inputs(call.inputs())),
        outputs(there.outputs(results.outputs())),
        options(there.options(call.options())),
        graph([this](cudaStream_t stream) {
          options.stream = stream;
          expect_success(cudaMemsetAsync(outputs.out.data, 0xff, results.out.memory().size(), stream));
          attention(inputs, outputs, options);
          attention(inputs, outputs, options);
        }) {}

  Brought there{};
  Results results;
  const Inputs inputs;
  const Outputs outputs;
  Options options;
  const CapturedStream graph;
};

// Packed sequences bring lists along, splits of keys counters.
CLAIM(the_device_replays_calls_that_a_graph_has_captured) {
  const Call decode = plain_call(DType::bf16, 1, 5000), exact = plain_call(DType::f32, 2, 3000);
  const Call masked = [] {
    Call call = plain_call(DType::f32, 70);
    call.key_lengths = {{300, 120}};
    return call;
  }();
  for (const Call* call : {&decode, &exact, &masked}) {
    const Results wanted = on_device(*call, {});
    CapturedCalls graph(*call), other(*call);
    for (int n = 0; n < 30; ++n) graph.graph.replay(), other.graph.replay();  // side by side
    for (CapturedCalls* each : {&graph, &other}) {
      each->there.fetch();
      expect(same(each->results, wanted), "replays of ", cases::describe(*call));
    }
  }
}

// A launch may begin before the one ahead of it has ended, and asks for its first keys then: it must see what
// they become. Here they are what the call ahead writes, over NaN.
CLAIM(a_call_reads_what_the_call_ahead_of_it_has_written) {
  constexpr std::int64_t keys = 2048, dim = 128;
  const Call ahead{.q = Tensor::random({keys / 32, 32, 1, dim}, 11, 3, DType::bf16),
                   .k = Tensor::random({keys / 32, 1, 1100, dim}, 12, 2, DType::bf16),
                   .v = Tensor::random({keys / 32, 1, 1100, dim}, 13, 2, DType::bf16)};
  const Results written = on_device(ahead, {});
  for (const std::int64_t heads : {8, 32}) {
    Call call{.q = Tensor::random({1, heads, 1, dim}, 14, 3, DType::bf16),
              .k = Tensor({1, 1, keys, dim}, DType::bf16),
              .v = Tensor({1, 1, keys, dim}, DType::bf16)};
    for (Tensor* x : {&call.k, &call.v})
      for (std::int64_t j = 0; j < keys; ++j)
        for (std::int64_t d = 0; d < dim; ++d) x->set(0, 0, j, d, written.out.at(j / 32, j % 32, 0, d));
    const Results wanted = on_device(call, {});
    Results first(ahead, {}), second(call, {});
    Brought there;
    const Inputs inputs = there.inputs(ahead.inputs());
    const Outputs keys_to_be = there.outputs(first.outputs()), outputs = there.outputs(second.outputs());
    Inputs after = there.inputs(call.inputs());
    after.k.data = after.v.data = keys_to_be.out.data;
    const CapturedStream graph([&](cudaStream_t stream) {
      expect_success(cudaMemsetAsync(keys_to_be.out.data, 0xff, first.out.memory().size(), stream));
      attention(inputs, keys_to_be, {.stream = stream});
      attention(after, outputs, {.stream = stream});
    });
    for (int n = 0; n < 20; ++n) {
      graph.replay();
      there.fetch();
      expect(same(second, wanted), heads, " heads, turn ", n);
    }
  }
}

// The card's free memory is everybody's: other programs change it between one look and the next, but not each
// time by just what these graphs would take, 185 KB each.
CLAIM(graphs_that_are_gone_leave_their_memory_to_others) {
  const Call call = plain_call(DType::bf16, 1, 5000);
  const auto free_after = [&](int graphs) {
    for (int n = 0; n < graphs; ++n) {
      CapturedCalls(call).graph.replay();
      expect_success(cudaDeviceSynchronize());
    }
    std::size_t free = 0, total = 0;
    expect_success(cudaMemGetInfo(&free, &total));
    return static_cast<std::int64_t>(free);
  };
  constexpr int graphs = 40, max_rounds = 20;
  constexpr std::int64_t granule = 1 << 20;  // memory is taken in twice as much
  std::int64_t free = free_after(6), taken = granule;
  for (int round = 0; round < max_rounds && std::abs(taken) >= granule; ++round) {
    const std::int64_t now = free_after(graphs);
    taken = free - now, free = now;
  }
  expect(std::abs(taken) < granule, "each ", graphs, " graphs change the free memory, at last by ", taken,
         " bytes");
}

// Two threads name streams of their own alike, and their calls may run side by side in one graph.
CLAIM(calls_of_two_threads_in_one_graph_do_not_disturb_each_other) {
  const Call call = plain_call(DType::bf16, 1, 5000);
  const Results wanted = on_device(call, {});
  struct Branch {
    Brought there{};
    Results results;
    Inputs inputs{};
    Outputs outputs{};
    cudaEvent_t end = nullptr;
  };
  std::vector<Branch> branches;
  branches.reserve(2);
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  expect_success(cudaStreamCreate(&stream));
  expect_success(cudaEventCreateWithFlags(&begin, cudaEventDisableTiming));
  for (int n = 0; n < 2; ++n) {
    Branch& b = branches.emplace_back(Branch{.results = Results(call, {})});
    b.inputs = b.there.inputs(call.inputs()), b.outputs = b.there.outputs(b.results.outputs());
    expect_success(cudaEventCreateWithFlags(&b.end, cudaEventDisableTiming));
  }
  expect_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  expect_success(cudaEventRecord(begin, stream));
  for (Branch& b : branches)
    std::thread([&] {
      cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;
      expect_success(cudaThreadExchangeStreamCaptureMode(&relaxed));
      expect_success(cudaStreamWaitEvent(cudaStreamPerThread, begin, 0));
      Options options = b.there.options(call.options());
      options.stream = cudaStreamPerThread;
      for (int n = 0; n < 8; ++n) attention(b.inputs, b.outputs, options);
      expect_success(cudaEventRecord(b.end, cudaStreamPerThread));
      expect_success(cudaStreamWaitEvent(stream, b.end, 0));
    }).join();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  expect_success(cudaStreamEndCapture(stream, &graph));
  expect_success(cudaGraphInstantiate(&ready, graph, 0));
  for (int n = 0; n < 30; ++n) expect_success(cudaGraphLaunch(ready, stream));
  expect_success(cudaStreamSynchronize(stream));
  for (Branch& b : branches) {
    b.there.fetch();
    expect(same(b.results, wanted), "a call beside another differs");
    cudaEventDestroy(b.end);
  }
  cudaGraphExecDestroy(ready), cudaGraphDestroy(graph), cudaEventDestroy(begin), cudaStreamDestroy(stream);
}

CLAIM(a_capture_that_has_failed_is_refused_in_its_own_words) {
  const Call call = plain_call(DType::bf16, 1, 5000);
  Results results(call, {});
  Brought there;
  const Inputs inputs = there.inputs(call.inputs());
  const Outputs outputs = there.outputs(results.outputs());
  Options options = there.options(call.options());
  cudaStream_t stream = nullptr;
  expect_success(cudaStreamCreate(&stream));
  options.stream = stream;
  expect_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  cudaStreamSynchronize(stream);  // which a capture may not
  expect_refused(Error::device,
                 "cudaStreamGetCaptureInfo: operation failed due to a previous error during capture "
                 "(cudaErrorStreamCaptureInvalidated, 901)",
                 [&] { attention(inputs, outputs, options); });
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  cudaGetLastError();  // of the two
  expect_success(cudaStreamDestroy(stream));
}

CLAIM(memory_that_is_not_the_devices_is_refused) {
  const Call call = plain_call(DType::f32, 3);
  Results results(call, {});
  Brought there;
  const Inputs inputs = there.inputs(call.inputs());
  const Outputs outputs = there.outputs(results.outputs());
  expect_refused(Error::device, "k.device: cpu is not q.device: cuda",
                 [&] { attention({.q = inputs.q, .k = call.k.view(), .v = inputs.v}, outputs, {}); });
  Inputs lying = inputs;
  lying.k.data = call.k.view().data;
  expect_refused(Error::device, "k.data: the address is in no CUDA device's memory",
                 [&] { attention(lying, outputs, {}); });
}

}  // namespace
}  // namespace heed::cuda::test
