# SPDX-License-Identifier: Apache-2.0
"""The cases of cli/bench/cases.txt, as `heed bench` reads them: what a name means, and how much work it counts. Needs nothing installed."""

import dataclasses
import math
import pathlib
import re

LIST = pathlib.Path(__file__).resolve().parents[1] / "cli/bench/cases.txt"
ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
PROJECTIONS_OF_A_LAYER = 4
NAME = re.compile(r"(prefill|decode|backward|layer|training|projection)/(f32|f16|bf16)/(\d+(?:x\d+)+)(/causal)?")


@dataclasses.dataclass(frozen=True)
class Case:
    """role is prefill, decode, backward, layer, training (a layer and its gradients) or projection."""

    name: str
    role: str
    dtype: str
    shape: tuple  # (batch, heads, kv_heads, queries, keys, dim); of a projection those of the layer it is one of
    causal: bool = False

    @property
    def is_grouped(self):
        return self.shape[1] != self.shape[2]

    @property
    def width(self):
        return self.shape[1] * self.shape[5]

    @property
    def operations(self):
        """Multiplications and additions of the products alone; of a causal mask only the visible half. None where bytes count."""
        batch, heads, kv_heads, queries, keys, dim = self.shape
        rows, width = batch * queries, self.width
        if self.bytes is not None:
            return None
        if self.role == "projection":
            return 2 * rows * width * width
        pairs = queries * (queries + 1) // 2 if self.causal else queries * keys
        attention = 4 * batch * heads * pairs * dim
        projections = 4 * rows * width * (width + kv_heads * dim)
        factors = {"backward": (2.5, 0), "layer": (1, 1), "training": (3.5, 3)}  # five products for two, and two for one
        of_attention, of_projections = factors.get(self.role, (1, 0))
        return of_attention * attention + of_projections * projections

    @property
    def bytes(self):
        """Of what is read once: keys and values of one query, the weights of a projection of one row. None where operations count."""
        batch, _, kv_heads, queries, keys, dim = self.shape
        if self.role == "decode":
            return 2 * batch * kv_heads * keys * dim * ELEMENT_BYTES[self.dtype]
        if self.role == "projection" and batch * queries == 1:
            return self.width**2 * ELEMENT_BYTES[self.dtype]
        return None


def parse(name):
    found = NAME.fullmatch(name)
    extents = tuple(int(number) for number in found[3].split("x")) if found else ()
    if len(extents) != (3 if found and found[1] == "projection" else 6):
        raise ValueError(f"{name}: not the name of a case")
    if found[1] == "projection":  # as in `heed bench`: sequences of up to 8 tokens in heads of up to 256 dimensions
        rows, _, width = extents
        dim, tokens = math.gcd(width, 256), math.gcd(rows, 8)
        extents = (rows // tokens, width // dim, width // dim, tokens, tokens, dim)
    return Case(name, found[1], found[2], extents, bool(found[4]))


def suites():
    """{suite: names}, in the order of the list."""
    found = {}
    for line in LIST.read_text(encoding="utf-8").splitlines()[1:-1]:
        if line.startswith("["):
            found[line.strip("[]")] = names = []
        elif line and not line.startswith("#"):
            names.append(line)
    return found


def raced(suite):
    """The cases of a suite that others than heed can run, or of all that are not a selection: without caches, biases and masks."""
    chosen = [suite] if suite != "all" else [name for name in suites() if name not in ("quick", "cuda", "calls")]
    names = dict.fromkeys(name for each in chosen for name in suites()[each])
    return [parse(name) for name in names if NAME.fullmatch(name)]
