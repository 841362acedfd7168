# SPDX-License-Identifier: Apache-2.0
"""Random Attention nodes, judged by the onnx package's reference evaluator. `--seed N` runs one.

The node tests of the standard are small and few of them combine anything; these combine everything that
opsets 23, 24 and 25 allow. Inputs are float32, one node in four float64, and well conditioned, so that a wrong
mask or order of steps is far beyond the limit.
"""

import argparse
import dataclasses
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import heed.onnx

LIMITS = {np.float32: {"rtol": 1e-4, "atol": 2e-6}, np.float64: {"rtol": 1e-12, "atol": 1e-14}}
INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


@dataclasses.dataclass
class Node:
    """One node: its inputs by name, its attributes and its opset."""

    opset: int
    inputs: dict
    attributes: dict

    def describe(self):
        inputs = {name: f"{array.dtype}{array.shape}" for name, array in self.inputs.items()}
        return f"opset {self.opset} {inputs} {self.attributes}"


def random_node(seed):
    """The node with that number."""
    draw = np.random.default_rng(seed)
    opset = int(draw.choice([23, 24, 25]))
    batch, kv_heads, group, queries, new = (int(draw.integers(1, most)) for most in (4, 4, 4, 8, 10))
    dim, value_dim = (int(draw.integers(1, 10)) for _ in range(2))
    cache = draw.choice(["none", "past", "nonpad"] if opset >= 24 else ["none", "past"])
    past = int(draw.integers(0, 6)) if cache == "past" else 0
    keys = past + new

    def normal(*shape):
        return draw.standard_normal(shape, dtype=np.float32)

    inputs = {
        "Q": normal(batch, kv_heads * group, queries, dim),
        "K": normal(batch, kv_heads, new, dim),
        "V": normal(batch, kv_heads, new, value_dim),
    }
    if cache == "past":
        inputs["past_key"] = normal(batch, kv_heads, past, dim)
        inputs["past_value"] = normal(batch, kv_heads, past, value_dim)
    if cache == "nonpad":
        inputs["nonpad_kv_seqlen"] = draw.integers(0, keys + 1, batch)
    if draw.random() < 0.6:
        needed = max(1, *inputs["nonpad_kv_seqlen"]) if cache == "nonpad" else 1
        reach = int(draw.integers(needed, keys + 1)) if opset >= 24 else keys  # since 24 a mask may be short
        inputs["attn_mask"] = random_mask(draw, (batch, kv_heads * group, queries, reach))
    attributes = random_attributes(draw, opset)
    if draw.random() < 0.4:
        attributes.update(q_num_heads=kv_heads * group, kv_num_heads=kv_heads)
        for name in ("Q", "K", "V"):
            array = inputs[name].swapaxes(1, 2)
            inputs[name] = np.ascontiguousarray(array).reshape(*array.shape[:2], -1)
    if draw.random() < 0.25:
        inputs = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in inputs.items()}
    return Node(opset, inputs, attributes)


def random_mask(draw, target):
    """Boolean or additive; some extents are 1, some leading axes are missing, some rows hide every key."""
    shape = [1 if draw.random() < 0.3 else extent for extent in target[:3]] + [target[3]]
    shape = shape[int(draw.integers(0, 4)) :]
    keep = draw.random(shape) < draw.choice([0.3, 0.8])
    if draw.random() < 0.5:
        return keep
    return np.where(keep, draw.standard_normal(shape), -np.inf).astype(np.float32)


def random_attributes(draw, opset):
    attributes = {
        "is_causal": int(draw.integers(0, 2)),
        "qk_matmul_output_mode": int(draw.integers(0, 4)),
        "softcap": float(draw.choice([0.0, 0.5, 2.0])),
    }
    if draw.random() < 0.4:
        attributes["scale"] = float(np.float32(draw.choice([0.0, 0.1, 1.5])))
    if draw.random() < 0.4:
        attributes["softmax_precision"] = int(draw.choice([TensorProto.FLOAT, TensorProto.DOUBLE]))
    if opset >= 25:
        attributes["left_window_size"] = int(draw.choice([-1, 0, 1, 2, 5]))
        attributes["right_window_size"] = int(draw.choice([-1, 0, 1, 3]))
    return attributes


def reference_outputs(node):
    """What the onnx package's evaluator says, with two of its defects stepped around.

    With is_causal it reads the number of queries off the mask, and goes wrong where the mask broadcasts along
    them: it gets the mask broadcast. With a softcap its mode 0 returns the capped scores, where the text and
    the operator's function body have the raw ones: those come from a node without a softcap.
    """
    inputs, attributes = dict(node.inputs), dict(node.attributes)
    queries = inputs["Q"].shape[-2]
    if "attn_mask" in inputs:
        mask = inputs["attn_mask"]
        inputs["attn_mask"] = np.broadcast_to(mask, (*mask.shape[:-2], queries, mask.shape[-1])).copy()
    outputs = evaluate(node.opset, inputs, attributes)
    if attributes["softcap"] and attributes["qk_matmul_output_mode"] == 0:
        outputs[3] = evaluate(node.opset, inputs, {**attributes, "softcap": 0.0})[3]
    return outputs


def evaluate(opset, inputs, attributes):
    names = [name if name in inputs else "" for name in INPUTS[: 6 if opset < 24 else 7]]
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in OUTPUTS]
    node = helper.make_node("Attention", names, OUTPUTS, **attributes)
    graph = helper.make_graph([node], "one_node", given, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, inputs)


def heeds_outputs(node):
    given = [node.inputs.get(name) for name in INPUTS]
    return heed.onnx.attention(*given, opset=node.opset, **node.attributes)


def is_in_double(node):
    """Whether the evaluator computes it in double throughout: it takes the root of a scale in float32, and heed's
    softmax is in double even where FLOAT is asked for."""
    in_float = node.attributes.get("scale") or node.attributes.get("softmax_precision") == TensorProto.FLOAT
    return node.inputs["Q"].dtype == np.float64 and not in_float


def disagreement(node):
    """None, or a sentence: which output, and how many of its numbers."""
    limits = LIMITS[np.float64 if is_in_double(node) else np.float32]
    for name, wanted, found in zip(OUTPUTS, reference_outputs(node), heeds_outputs(node), strict=True):
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return f"{name}: {found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}"
        wrong = int((~np.isclose(found, wanted, **limits)).sum())
        if wrong:
            return f"{name}: {wrong} of {wanted.size} numbers differ"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    node = random_node(parser.parse_args().seed)
    print(node.describe())
    found = disagreement(node)
    print(found or "agrees")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
