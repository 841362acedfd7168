// SPDX-License-Identifier: Apache-2.0
// Docstrings of the mask builders. The examples in them are run by the tests.
#pragma once

namespace heed::python {

constexpr const char* padding_mask_doc = R"(A mask to pass as hide: True where a token is padding.

tokens is (batch, length) or (length,), integers; the result (batch, 1, 1, length), of the same library.

>>> import numpy, heed
>>> heed.padding_mask(numpy.array([[5, 8, 0], [7, 0, 0]]))[:, 0, 0]
array([[False, False,  True],
       [False,  True,  True]])
)";
constexpr const char* look_ahead_mask_doc = R"(A mask to pass as hide: True strictly above the diagonal.

The result is (1, 1, size, size). attention(..., causal=True) does the same without a matrix.

>>> import heed
>>> heed.look_ahead_mask(3)[0, 0]
array([[False,  True,  True],
       [False, False,  True],
       [False, False, False]])
)";
constexpr const char* combine_doc = R"(Two masks as one: True where either is.

Both broadcast to (batch, heads, queries, keys); so does the result.

>>> import heed
>>> heed.combine(heed.padding_mask([1, 1, 0]), heed.look_ahead_mask(3))[0, 0]
array([[False,  True,  True],
       [False, False,  True],
       [False, False,  True]])
)";
constexpr const char* key_lengths_doc =
    R"(How many tokens come before the padding: what attention takes as key_lengths.

tokens is (batch, length) or (length,); the result (batch,), int32. Padding before a token is refused.

>>> import heed
>>> heed.key_lengths([[5, 8, 0], [7, 0, 0]])
array([2, 1], dtype=int32)
)";

}  // namespace heed::python
