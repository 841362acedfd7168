#!/bin/bash
# build.sh [-j N] [SRC]: everything into build/, N compilers at a time; SRC is the library's root. KERNELS='regular expression' takes
# those kernels alone.
cd "$(dirname "$0")"
jobs=1; [ "$1" = -j ] && jobs=$2 && shift 2
root=${1:-../..}
mkdir -p build
rm -f build/k*; python3 kernels.py build
[ -z "$KERNELS" ] || rm -f $(grep -LE "$KERNELS" build/k*.cu)
flags="-std=c++20 --expt-relaxed-constexpr -O3 -fmad=false -I. -I$root/src -I$root/include -gencode arch=compute_80,code=sm_90 -diag-suppress 177"
ls launch.cpp driver.cu build/k*.cu | xargs -P $jobs -I{} sh -c 'o=build/$(basename {} | sed "s/\.[a-z]*$//"); nice nvcc '"$flags"' -Xptxas=-v -c {} -o $o.o > $o.log 2>&1 || { echo "FAILED {}"; grep error -A3 $o.log | head -20; }'
nvcc -cudart static build/*.o -o build/general_trial -Xcompiler -static-libstdc++ -Xcompiler -static-libgcc || exit 1
for f in build/*.log; do python3 registers.py $f; done | grep -v "merge<" > build/registers.txt
