#!/bin/bash
# run.sh [SRC]: builds, checks and times everything; under two minutes with 16 cores and an H200
cd "$(dirname "$0")"
./build.sh -j "$(nproc)" "${1:-../..}" && ./build/general_trial check 400 3 && ./build/general_trial bits && ./build/general_trial time && python3 torch_times.py all
