// SPDX-License-Identifier: Apache-2.0
#include "claims.hpp"

int main(int argc, char** argv) { return heed::claims::run({argv + 1, argv + argc}); }
