// SPDX-License-Identifier: Apache-2.0
// Everything but what needs a library beside heed or is for few: heed/view.hpp, heed/distributed.hpp,
// heed/distributed_layer.hpp, heed/mpi.hpp, heed/mdspan.hpp, heed/option_list.hpp.
#pragma once
#include "heed/attention.hpp"
#include "heed/cache.hpp"
#include "heed/check.hpp"
#include "heed/error.hpp"
#include "heed/few.hpp"
#include "heed/files.hpp"
#include "heed/gradient.hpp"
#include "heed/half.hpp"
#include "heed/layer.hpp"
#include "heed/mask.hpp"
#include "heed/pretrained.hpp"
#include "heed/rotary.hpp"
#include "heed/stream.hpp"
#include "heed/tensor.hpp"
#include "heed/threads.hpp"
#include "heed/version.hpp"
