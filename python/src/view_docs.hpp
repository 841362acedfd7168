// SPDX-License-Identifier: Apache-2.0
// Docstrings of what shows attention. heed.view and heed.picture are what people call.
#pragma once

namespace heed::python {

constexpr const char* page_doc =
    R"(A page that shows attention, as heed.view makes it: runs, their layers, and rows of weights.)";
constexpr const char* add_run_doc =
    R"(One pass of tokens: extents are the queries, the keys and the first query's position among them, or None.)";
constexpr const char* add_layer_doc = R"(A layer of the run added last.)";
constexpr const char* add_rows_doc =
    R"(The next queries of every head of the layer: weights (heads, rows, keys), and what a mask hides of them.)";
constexpr const char* html_doc = R"(The whole page.)";
constexpr const char* save_doc = R"(Writes it to a file, whole or not at all.)";
constexpr const char* picture_doc = R"(Heatmaps of heads, as heed.picture saves them.)";
constexpr const char* add_picture_layer_doc = R"(The next row of the picture: another layer.)";
constexpr const char* png_doc = R"(The bytes of a PNG file.)";
constexpr const char* svg_doc = R"(The text of an SVG file.)";
constexpr const char* pdf_doc = R"(The bytes of a PDF file.)";
constexpr const char* looks_causal_doc =
    R"(Is every weight above the diagonal exactly 0, and not every other too? weights are (heads, queries, keys).)";

}  // namespace heed::python
