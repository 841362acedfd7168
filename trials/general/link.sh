#!/bin/bash
cd "$(dirname "$0")"
nvcc -cudart static build/*.o -o build/general_trial -Xcompiler -static-libstdc++ -Xcompiler -static-libgcc && ls -la build/general_trial
mkdir -p /work/main/build/trials/general && cp build/general_trial torch_times.py /work/main/build/trials/general/
