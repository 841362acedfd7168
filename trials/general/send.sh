#!/bin/bash
# send.sh FOLDER: the trial with the library's headers, to be built and run elsewhere
cd "$(dirname "$0")"
to=${1:?a folder}
rm -rf "$to"; mkdir -p "$to/lib/src"; cp -r general *.cpp *.cu *.hpp *.inc *.py *.sh "$to/"
cp -r ../../include "$to/lib/"; for d in cuda cache problem softmax; do cp -r ../../src/$d "$to/lib/src/"; done
