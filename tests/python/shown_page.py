# SPDX-License-Identifier: Apache-2.0
"""Reads a page that heed wrote, without a browser: its description and its blobs, unpacked by Python's zlib."""

import base64
import json
import re
import zlib

import numpy as np

HIDDEN = 255
HIDDEN_BITS = 0xFFFFFFFF


class ShownPage:
    def __init__(self, text):
        self.text = text
        (description,) = re.findall(r'<script type="application/json" id="attention">(.*?)</script>', text, re.DOTALL)
        self.description = json.loads(description)
        found = re.findall(r'<script type="application/octet-stream" id="blob-(\d+)">(.*?)</script>', text)
        self.blobs = {int(number): packed for number, packed in found}  # small ones stand before the script, the others after it

    def head(self, run=0, layer=0, head=0):
        return self.description["runs"][run]["layers"][layer]["heads"][head]

    def bytes_of(self, number):
        return np.frombuffer(zlib.decompress(base64.b64decode(self.blobs[number], validate=True), -15), np.uint8)

    def words_of(self, number):
        planes = self.bytes_of(number).reshape(4, -1).astype(np.uint32)
        return planes[0] | planes[1] << 8 | planes[2] << 16 | planes[3] << 24

    def exact(self, run=0, layer=0, head=0):
        """(weights, hidden), both (queries, keys)."""
        shown = self.description["runs"][run]
        bits = self.words_of(self.head(run, layer, head)["exact"]).reshape(shown["queries"], shown["keys"])
        return bits.view(np.float32), bits == HIDDEN_BITS

    def level(self, level, kind):
        return self.bytes_of(level[kind]).reshape(level["rows"], level["columns"])


def code_of(weights):
    """The eight bits of a weight, as docs/view.md says it."""
    weights = np.asarray(weights, np.float64)
    with np.errstate(divide="ignore"):
        steps = np.round((np.log2(weights) + 20) * 251 / 20)
    return np.where(weights <= 0, 0, 1 + np.clip(steps, 0, 251)).astype(np.int64)


def pooled(weights, pool, hidden=None):
    """(largest, mean, hidden) of pool x pool cells, over what is seen."""
    queries, keys = weights.shape
    rows, columns = -(-queries // pool), -(-keys // pool)
    seen = np.zeros((rows * pool, columns * pool), bool)
    seen[:queries, :keys] = True if hidden is None else ~hidden
    padded = np.zeros(seen.shape, np.float64)
    padded[:queries, :keys] = weights
    cells = lambda x: x.reshape(rows, pool, columns, pool).swapaxes(1, 2).reshape(rows, columns, -1)  # noqa: E731
    seen, padded = cells(seen), cells(padded)
    count = seen.sum(-1)
    largest = np.where(seen, padded, 0).max(-1)
    mean = np.where(seen, padded, 0).sum(-1) / np.maximum(count, 1)
    return largest, mean, count == 0
