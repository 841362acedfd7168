// SPDX-License-Identifier: Apache-2.0
// What mma.sync can do on a card: products alone, and with as many matrices out of shared memory as attention
// needs.
#include <cstdio>

#include "general/tile.cuh"
using namespace heed::cuda;
using namespace heed::cuda::general;
// Of 64 products, `loads` load_matrices.
template <int loads, int exps>
__global__ void __launch_bounds__(128, 2) products(float* out, int rounds) {
  extern __shared__ __align__(16) unsigned char memory[];
  const SharedAddress at =
      shared_address(memory) + (threadIdx.x % 16) * 272 + threadIdx.x / 16 % 2 * 16 + threadIdx.x / 32 * 4352;
  float s[2][16][4] = {};
  float e[16];
  for (int n = 0; n < 16; ++n) e[n] = threadIdx.x * -0.01f - n;
  std::uint32_t a[2][4], b[4][4] = {};
  for (int m = 0; m < 2; ++m) load_matrices(a[m], at + m * 4352);
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int n = 0; n < 32; ++n) {
      if (n * loads / 32 != (n + 1) * loads / 32) load_matrices(b[n % 4], at + n % 8 * 32);
      if (n * exps / 32 != (n + 1) * exps / 32)
#pragma unroll
        for (int x = 0; x < exps / 32; ++x) e[(n + x) % 16] = fast_exp2(e[(n + x) % 16]);
      add_product<Type::bf16>(s[0][n % 16], a[0], b[(n + 3) % 4][n % 2 * 2], b[(n + 3) % 4][n % 2 * 2 + 1]);
      add_product<Type::bf16>(s[1][n % 16], a[1], b[(n + 3) % 4][n % 2 * 2], b[(n + 3) % 4][n % 2 * 2 + 1]);
    }
  }
  float sum = 0;
  for (int m = 0; m < 2; ++m)
    for (int n = 0; n < 16; ++n) sum += s[m][n][0] + s[m][n][1] + s[m][n][2] + s[m][n][3] + e[n];
  out[blockIdx.x * 128 + threadIdx.x] = sum;
}
template <int loads, int exps>
void run(float* out) {
  cudaFuncSetAttribute(products<loads, exps>, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000);
  cudaEvent_t a, b;
  cudaEventCreate(&a), cudaEventCreate(&b);
  float ms = 0;
  for (int n = 0; n < 3; ++n) {
    cudaEventRecord(a);
    products<loads, exps><<<264, 128, 100000>>>(out, 20000);
    cudaEventRecord(b), cudaEventSynchronize(b), cudaEventElapsedTime(&ms, a, b);
  }
  std::printf("peak: of 64 products %2d loads, %3d exponentials: %.0f TFLOP/s %s\n", loads, exps,
              264.0 * 4 * 20000 * 64 * 4096 / ms * 1e-9, cudaGetErrorString(cudaGetLastError()));
}
int main() {
  float* out;
  cudaMalloc(&out, 1 << 20);
  run<0, 0>(out), run<16, 0>(out), run<20, 0>(out), run<32, 0>(out), run<0, 32>(out), run<16, 32>(out);
}
