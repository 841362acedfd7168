# SPDX-License-Identifier: Apache-2.0
"""The onnx package as judge of 1,000 random Attention nodes; onnx_lattice.py says how."""

import collections

import onnx_lattice
import pytest

NODES_PER_TEST = 100
SEEDS = range(1000)


@pytest.mark.parametrize("first", SEEDS[::NODES_PER_TEST])
def test_no_random_node_disagrees_with_the_reference_evaluator(first):
    failures = []
    for seed in range(first, first + NODES_PER_TEST):
        found = onnx_lattice.disagreement(onnx_lattice.random_node(seed))
        if found:
            failures.append(f"python tests/conformance/onnx_lattice.py --seed {seed}  # {found}")
    assert not failures, f"{len(failures)} of {NODES_PER_TEST} nodes:\n" + "\n".join(failures)


def test_the_random_nodes_reach_every_input_and_attribute_at_least_fifty_times():
    reached = collections.Counter()
    for seed in SEEDS:
        node = onnx_lattice.random_node(seed)
        reached.update(list(node.inputs))
        reached.update(f"{name}={value}" for name, value in node.attributes.items())
        reached.update([f"opset {node.opset}", f"rank {node.inputs['Q'].ndim}", str(node.inputs["Q"].dtype)])
        reached["in double"] += onnx_lattice.is_in_double(node)
        if "attn_mask" in node.inputs:
            mask = node.inputs["attn_mask"]
            reached.update([f"mask {mask.dtype}", f"mask rank {mask.ndim}"])
    wanted = {*onnx_lattice.INPUTS, "opset 23", "opset 24", "opset 25", "rank 3", "rank 4"}
    wanted |= {"float32", "float64", "in double", "mask bool", "mask float32", "mask float64", *(f"mask rank {rank}" for rank in (1, 2, 3, 4))}
    wanted |= {f"qk_matmul_output_mode={mode}" for mode in range(4)} | {f"is_causal={c}" for c in (0, 1)}
    wanted |= {
        "softcap=0.0",
        "softcap=2.0",
        "softmax_precision=1",
        "softmax_precision=11",
        "scale=0.0",
        "scale=1.5",
    }
    wanted |= {"left_window_size=-1", "left_window_size=2", "right_window_size=-1", "right_window_size=1"}
    assert {name: reached[name] for name in wanted if reached[name] < 50} == {}
