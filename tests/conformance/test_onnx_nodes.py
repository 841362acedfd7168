# SPDX-License-Identifier: Apache-2.0
"""The ONNX standard's own node tests of Attention and RotaryEmbedding, each under its real name.

The onnx package generates them (inputs from a fixed seed, expected outputs from its reference implementation)
and brings the judge: shape, type and value of every output, rtol 1e-3 and atol 1e-7.
"""

import onnx
import onnx.backend.test.case.node as node_cases
import pytest
from onnx.backend.test.runner import Runner

import heed.onnx

# What the releases 1.23.0 to 1.23.2 generate.
EXPECTED_COUNTS = {"Attention": 93, "RotaryEmbedding": 8}


def cases_of(operator):
    """The cases whose graph is one node of that operator.

    Each case has a twin named "..._expanded" with the same numbers, whose graph is the operator's function
    body of Add, MatMul, Softmax and so on: it tests those operators and is left out.
    """
    # Importing a module of cases generates them. These two take a second, all of them ten.
    from onnx.backend.test.case.node import attention, rotaryembedding  # noqa: F401

    return [
        case for case in node_cases._NodeTestCases if [n.op_type for n in case.model.graph.node] == [operator]
    ]


CASES = {operator: cases_of(operator) for operator in EXPECTED_COUNTS}


def call(case):
    """heed's outputs, those that the case's node names."""
    node = case.model.graph.node[0]
    values = iter(case.data_sets[0][0])
    inputs = [next(values) if name else None for name in node.input]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "RotaryEmbedding":
        return [heed.onnx.rotary_embedding(*inputs, **attributes)]
    outputs = heed.onnx.attention(*inputs, opset=case.model.opset_import[0].version, **attributes)
    return [output for output, name in zip(outputs, node.output, strict=False) if name]


@pytest.mark.parametrize("operator", EXPECTED_COUNTS)
def test_the_number_of_cases_is_that_of_the_release(operator):
    assert onnx.__version__.startswith(
        "1.23."
    ), f"the counts are those of onnx 1.23; found {onnx.__version__}"
    assert len({case.name for case in CASES[operator]}) == EXPECTED_COUNTS[operator]


@pytest.mark.parametrize("case", [c for cases in CASES.values() for c in cases], ids=lambda case: case.name)
def test_node(case):
    expected = case.data_sets[0][1]
    Runner.assert_similar_outputs(expected, call(case), rtol=case.rtol, atol=case.atol)
