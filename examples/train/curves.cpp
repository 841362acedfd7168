// SPDX-License-Identifier: Apache-2.0
#include "curves.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <fstream>

namespace train {
namespace {

constexpr double width = 640, height = 360, left = 56, right = 150, top = 40, bottom = 44;

[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...) {
  char made[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(made, sizeof made, format, values);
  va_end(values);
  return made;
}

// The mean of the steps around, so that batches do not hide the course of things.
double smoothed(const std::vector<double>& losses, std::size_t at) {
  const std::size_t reach = std::max<std::size_t>(1, losses.size() / 60), first = at < reach ? 0 : at - reach,
                    end = std::min(losses.size(), at + reach + 1);
  double sum = 0;
  for (std::size_t n = first; n < end; ++n) sum += losses[n];
  return sum / static_cast<double>(end - first);
}

}  // namespace

void draw(const std::filesystem::path& path, const Plot& plot) {
  double steps = 1;
  for (const Curve& curve : plot.curves)
    steps = std::max(steps, static_cast<double>(curve.first_step) + static_cast<double>(curve.losses.size()));
  const auto x_of = [&](double step) { return left + (width - left - right) * step / steps; };
  const auto y_of = [&](double loss) {
    return top + (height - top - bottom) * (1 - std::min(loss, plot.highest) / plot.highest);
  };
  std::ofstream file(path);
  file << text(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
      width, height);
  file << text("<text x=\"%.0f\" y=\"22\" font-size=\"14\" fill=\"#222222\">%s</text>\n", left,
               plot.title.c_str());
  for (int loss = 0; loss <= static_cast<int>(plot.highest); ++loss) {
    file << text("<path d=\"M%.1f %.1fH%.1f\" stroke=\"#dddddd\"/>\n", left, y_of(loss), width - right);
    file << text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" fill=\"#555555\">%d</text>\n", left - 8,
                 y_of(loss) + 4, loss);
  }
  for (int step = 0; step <= static_cast<int>(steps); step += 200)
    file << text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#555555\">%d</text>\n",
                 x_of(step), height - bottom + 18, step);
  file << text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#555555\">step</text>\n",
               x_of(steps / 2), height - 8);
  double legend = top + 8;
  for (const Curve& curve : plot.curves) {
    file << "<path fill=\"none\" stroke-width=\"1.8\" stroke=\"" << curve.colour << "\" d=\"";
    const std::size_t stride = std::max<std::size_t>(1, curve.losses.size() / 240);
    for (std::size_t n = 0; n < curve.losses.size(); n += stride)
      file << text("%c%.1f %.1f", n == 0 ? 'M' : 'L',
                   x_of(static_cast<double>(curve.first_step) + static_cast<double>(n)),
                   y_of(smoothed(curve.losses, n)));
    file << "\"/>\n";
    file << text("<path d=\"M%.0f %.0fh18\" stroke-width=\"2.5\" stroke=\"%s\"/>\n", width - right + 12,
                 legend, curve.colour.c_str());
    file << text("<text x=\"%.0f\" y=\"%.0f\" fill=\"#222222\">%s</text>\n", width - right + 36, legend + 4,
                 curve.name.c_str());
    legend += 20;
  }
  file << "</svg>\n";
}

}  // namespace train
