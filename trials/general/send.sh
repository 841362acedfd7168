#!/bin/bash
# What a run on the lent machine needs, into the folder that travels.
cd "$(dirname "$0")"; to=/work/main/build/trials/general
rm -rf $to; mkdir -p $to; cp -r general *.cpp *.cu *.hpp *.inc *.py *.sh $to/
mkdir -p $to/lib/src; cp -r ../../include $to/lib/; for d in cuda cache problem softmax; do cp -r ../../src/$d $to/lib/src/; done
