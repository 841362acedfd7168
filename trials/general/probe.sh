#!/bin/bash
# probe.sh SHAPE SOURCE STAGE [code]: registers and spills of one kernel
t=$(mktemp -d)
cat > $t/probe.cu <<X
#include "general/kernel.cuh"
using namespace heed; using namespace heed::cuda; using namespace heed::cuda::general;
using S_ = Shape<$1>;
template __global__ void heed::cuda::general::attend<S_, $2, $3>(const __grid_constant__ Call, const __grid_constant__ Plan);
X
nice nvcc -std=c++20 --expt-relaxed-constexpr -O3 -fmad=false -I. -I../../src -I../../include -gencode arch=compute_80,code=${4:-sm_90} -Xptxas=-v -c $t/probe.cu -o $t/probe.o 2>&1 | grep -E "error|spill|Used|arning" | grep -v "0 bytes stack frame, 0 bytes spill" | tr '\n' ' '; echo "$@"; rm -rf $t
