// SPDX-License-Identifier: Apache-2.0
#include "reference/numbers.hpp"

#include "reference/row.hpp"

namespace heed::reference {

Rows::Rows(const View& x) : stride_(bhsd(x.shape)) {
  numbers_.reserve(static_cast<std::size_t>(x.shape.elements()));
  for (std::int64_t b = 0; b < x.shape.batch; ++b)
    for (std::int64_t h = 0; h < x.shape.heads; ++h)
      for (std::int64_t i = 0; i < x.shape.length; ++i)
        for (std::int64_t d = 0; d < x.shape.dim; ++d) numbers_.push_back(read(x, b, h, i, d));
  if (x.shape.batch == 1) stride_.batch = 0;
}

}  // namespace heed::reference
