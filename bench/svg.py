# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG: bars, dots and lines, in colours for light and dark. The same numbers make the same bytes."""

import html
import math
import textwrap

WIDTH = 480  # on a telephone it is read without scrolling
WIDE = 760
STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}.t{font-size:16px;font-weight:600}.s{fill:#57606a;font-size:12px}.small{font-size:8px}
.e{text-anchor:end}.m{text-anchor:middle}.bg{fill:#fff;stroke:#d0d7de}.g{stroke:#d8dee4}.one{stroke:#24292f;stroke-dasharray:4 3}
path{fill:none;stroke-width:2.5}.l{paint-order:stroke;stroke:#fff;stroke-width:4px}path.cut{stroke:#fff}
"""
DARK = """text{fill:#e6edf3}.s{fill:#9da7b3}.bg{fill:#15191f;stroke:#30363d}.g{stroke:#2b323a}.one{stroke:#e6edf3}.l,path.cut{stroke:#15191f}
"""
# {contestant: (on light, on dark)}
COLORS = {
    "heed": ("#0b5fd7", "#58a6ff"),
    "torch": ("#d9480f", "#ff922b"),
    "torch-regrouped": ("#e8890c", "#ffd43b"),
    "onnxruntime": ("#2b8a3e", "#69db7c"),
    "numpy": ("#868e96", "#adb5bd"),
    "cudnn": ("#2b8a3e", "#69db7c"),
    "flash": ("#c2255c", "#faa2c1"),
    "efficient": ("#6741d9", "#b197fc"),
    "f32": ("#0b5fd7", "#58a6ff"),
    "bf16": ("#c2255c", "#faa2c1"),
}
# {contestant: what a reader calls it}
WHO = {
    "heed": "heed",
    "torch": "PyTorch",
    "torch-regrouped": "PyTorch, a group's heads as queries",
    "onnxruntime": "ONNX Runtime",
    "numpy": "NumPy",
    "cudnn": "cuDNN",
    "flash": "PyTorch's flash",
    "efficient": "PyTorch's efficient",
    "f32": "f32",
    "bf16": "bf16",
}


def number(value):
    """At most a tenth of a pixel."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def text(x, y, words, classes=""):
    kind = f' class="{classes}"' if classes else ""
    return f'<text x="{number(x)}" y="{number(y)}"{kind}>{html.escape(words)}</text>'


def line(x1, y1, x2, y2, classes):
    return f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" class="{classes}"/>'


def color_class(name):
    return "c-" + name.replace(" ", "-")


def wrapped(words, letters):
    return textwrap.wrap(words, letters, break_long_words=False)


def picture(title, subtitle, height, parts, names, width=WIDTH, is_named=True):
    """A whole file: a card with a title, which names the run, and a legend; `parts` begin below them, at 0."""
    light = "".join(f".{color_class(n)}{{fill:{COLORS[n][0]}}}path.{color_class(n)}{{fill:none;stroke:{COLORS[n][0]}}}" for n in names)
    dark = "".join(f".{color_class(n)}{{fill:{COLORS[n][1]}}}path.{color_class(n)}{{fill:none;stroke:{COLORS[n][1]}}}" for n in names)
    head, y = [], 30.0
    for kind, said, letters, step in (("t", title, width // 11, 20), ("s", subtitle, width // 7, 17)):
        for words in wrapped(said, letters):
            head.append(text(24, y, words, kind))
            y += step
    x, y = 24.0, y + 5
    for name in names if is_named else ():
        wide = 40 + 7 * len(WHO[name])
        if x > 24 and x + wide > width:
            x, y = 24.0, y + 20
        head += [f'<rect x="{number(x)}" y="{number(y - 10)}" width="12" height="12" rx="2" class="{color_class(name)}"/>', text(x + 18, y, WHO[name])]
        x += wide
    y += 18
    body = "\n".join([*head, f'<g transform="translate(0 {number(y)})">', *parts, "</g>"])
    tall = round(y + height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" role="img" aria-label="{html.escape(title)}">\n'
        f"<style>{STYLE}{light}\n@media(prefers-color-scheme:dark){{{DARK}{dark}}}</style>\n"
        f'<rect x=".5" y=".5" width="{width - 1}" height="{tall - 1}" rx="8" class="bg"/>\n{body}\n</svg>\n'
    )


# As the drawings of the pages have it; the site puts its own theme's colours in its place.
DRAWN = """text{fill:#1d2130;font-family:system-ui,"Segoe UI",sans-serif;font-size:13px}.quiet{fill:#5b6075;font-size:12px}
.soft{fill:#d7dcf5}.strong{fill:#3f51b5}
@media (prefers-color-scheme:dark){text{fill:#e6e8f2}.quiet{fill:#a9afc6}.soft{fill:#343b5c}.strong{fill:#8fa0ff}}
"""


def pairs(title, rows):
    """A drawing. rows: [(label, [(who, time in words, seconds)])], heed first; the longest bar of a row fills it."""
    width, left, room, y = 440, 78, 276, 0.0
    parts = []
    for label, times in rows:
        parts.append(text(4, y + 18, label))
        y += 26
        longest = max(seconds for _, _, seconds in times)
        for who, words, seconds in times:
            length = room * seconds / longest
            parts.append(text(4, y + 14, who, "quiet"))
            place = f'x="{left}" y="{number(y + 2)}" width="{number(length)}" height="16" rx="3"'
            parts.append(f'<rect class="{"strong" if who == "heed" else "soft"}" {place}/>')
            parts.append(text(left + length + 6, y + 15, words))
            y += 22
        y += 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {width} {round(y)}" role="img" aria-label="{html.escape(title)}">\n'
        f"<!-- SPDX-License-Identifier: Apache-2.0 -->\n<style>\n{DRAWN}</style>\n<title>{html.escape(title)}</title>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def bars(title, subtitle, axis, rows, names, largest):
    """rows: [(label, {name: value})]. A bar beyond `largest` has a cut and says its value; 1 has a line of its own."""
    left, y = 24, 6.0
    parts, top, scale = [], y, (WIDTH - left - 80) / largest
    for label, values in rows:
        parts.append(text(left, y + 11, label, "l"))
        y += 16
        for name in (name for name in names if name in values):
            value = values[name]
            length = min(value, largest) * scale
            parts.append(f'<rect x="{left}" y="{number(y + 2)}" width="{number(length)}" height="13" rx="2" class="{color_class(name)}"/>')
            figure = f"{value:.2f}" if value < 10 else f"{value:.0f}"
            if value > largest:
                parts.append(f'<path d="M{number(left + length - 14)} {number(y + 17)}l6-17m3 0l-6 17" class="cut"/>')
            parts.append(text(left + length + 5, y + 13, figure, "s l"))
            y += 17
        y += 9
    ticks = []
    for n in range(int(largest) + 1):
        x = left + n * scale
        ticks += [line(x, top - 6, x, y, "one" if n == 1 else "g"), text(x, y + 16, str(n), "s m")]
    ticks.append(text(left + largest * scale / 2, y + 34, axis, "s m"))
    return picture(title, subtitle, round(y + 48), ticks + parts, names)


def columns(title, subtitle, axis, groups, name, largest):
    """groups: [(label, [value])], side by side. A column beyond `largest` has a cut and says its value; 1 has a line of its own."""
    left, right, top, height, gap = 46, WIDE - 24, 40, 240, 12
    each = (right - left - gap * (len(groups) - 1)) / sum(len(values) for _, values in groups)
    parts, x = [], float(left)
    for n in range(int(largest) + 1):
        y = top + height * (1 - n / largest)
        parts += [line(left, y, right, y, "one" if n == 1 else "g"), text(left - 8, y + 4, str(n), "s e")]
    for label, values in groups:
        for n, value in enumerate(values):
            tall = height * min(value, largest) / largest
            place = f'x="{number(x + n * each)}" y="{number(top + height - tall)}" width="{number(each - 1)}" height="{number(tall)}"'
            parts.append(f'<rect {place} class="{color_class(name)}"/>')
            if value > largest:
                middle = x + (n + 0.5) * each
                parts.append(f'<path d="M{number(middle - each)} {top + 13}l{number(2 * each)}-4" class="cut"/>')
                parts.append(f'<text class="s small" transform="translate({number(middle + 3)} {top - 4}) rotate(-90)">{value:.0f}</text>')
        width = len(values) * each
        for n, word in enumerate(label.split()):
            parts.append(text(x + width / 2, top + height + 18 + 15 * n, word, "s m"))
        x += width + gap
    parts.append(text(left, 8, axis, "s"))
    return picture(title, subtitle, top + height + 48, parts, [name], WIDE, is_named=False)


def dots(title, subtitle, axis, rows, names):
    """rows: [(label, {name: value})], on a scale of powers of ten."""
    every = [value for _, values in rows for value in values.values() if value > 0]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    left, y, top = 34, 6.0, 0.0
    scale = (WIDTH - left - 34) / (high - low)
    bottom = y + 38 * len(rows)
    parts = []
    for power in range(low, high + 1):
        x = left + (power - low) * scale
        parts += [line(x, top, x, bottom, "g"), text(x, bottom + 16, "1" if power == 0 else f"1e{power}", "s m")]
    for label, values in rows:
        parts.append(text(24, y + 12, label, "l"))
        for name in names:
            if values.get(name, 0) > 0:
                x = left + (math.log10(values[name]) - low) * scale
                parts.append(f'<circle cx="{number(x)}" cy="{number(y + 24)}" r="5.5" class="{color_class(name)}"/>')
        y += 38
    parts.append(text(WIDTH / 2, bottom + 34, axis, "s m"))
    return picture(title, subtitle, round(bottom + 48), parts, names)


def lines(title, subtitle, axes, series, ticks, is_logarithmic=False):
    """series: {name: [(length, value)]}, dashed where the name ends in " causal"; lengths on a scale of powers of two. axes: of
    lengths and of values; ticks: [(value, label)] of the values."""
    left, right, top, height = 66, WIDTH - 34, 22, 220
    lengths = sorted({x for points in series.values() for x, _ in points})
    low, high = math.log2(lengths[0]), math.log2(lengths[-1])
    scale = math.log10 if is_logarithmic else float
    bottom, ceiling = scale(ticks[0][0]), scale(ticks[-1][0])

    def at(x, value):
        across = left + (math.log2(x) - low) / (high - low) * (right - left)
        return across, top + height - (scale(value) - bottom) / (ceiling - bottom) * height

    parts = []
    for value, label in ticks:
        y = at(lengths[0], value)[1]
        parts += [line(left, y, right, y, "g"), text(left - 8, y + 4, label, "s e")]
    for x in lengths:
        parts.append(text(at(x, ticks[0][0])[0], top + height + 18, f"{x:,}".replace(",", " "), "s m"))
    names = []
    for name, points in series.items():
        plain = name.removesuffix(" causal")
        names += [plain] if plain not in names else []
        places = [tuple(map(number, at(*point))) for point in sorted(points)]
        way = " ".join(f"{'L' if n else 'M'}{x} {y}" for n, (x, y) in enumerate(places))
        dash = ' stroke-dasharray="6 4"' if name != plain else ""
        parts.append(f'<path d="{way}" class="{color_class(plain)}"{dash}/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="4" class="{color_class(plain)}"/>' for x, y in places]
    parts += [text((left + right) / 2, top + height + 38, axes[0], "s m"), text(24, 6, axes[1], "s")]
    return picture(title, subtitle, top + height + 52, parts, names)
