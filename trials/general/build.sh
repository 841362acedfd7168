#!/bin/bash
# build.sh [target]: objects in build/, one at a time
set -e
cd "$(dirname "$0")"
mkdir -p build
flags="-std=c++20 --expt-relaxed-constexpr -O3 -fmad=false -I. -I../../src -I../../include -gencode arch=compute_80,code=sm_90 -diag-suppress 177"
for f in ${@:-launch.cpp driver.cu kernels_plain.cu kernels_dims.cu kernels_every.cu kernels_pages.cu kernels_few.cu}; do
  nice nvcc $flags -Xptxas=-v -c $f -o build/${f%.*}.o > build/${f%.*}.log 2>&1 || { grep -E "error" -A3 build/${f%.*}.log | head -40; exit 1; }
  python3 registers.py build/${f%.*}.log
done
