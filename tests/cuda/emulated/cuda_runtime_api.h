// SPDX-License-Identifier: Apache-2.0
// How src/cuda/runtime/tensor_map.cpp finds the driver's only function that it calls.
#pragma once
#include "cuda.h"

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
constexpr unsigned long long cudaEnableDefault = 0;
int cudaGetDriverEntryPointByVersion(const char* name, void** entry, unsigned version, unsigned long long,
                                     cudaDriverEntryPointQueryResult*);
