# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: every operator of its that computes the case, inputs and outputs bound in place."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

ELEMENT = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
OPSETS = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]


class Graph:
    """One graph under construction, then one session with everything bound."""

    def __init__(self, case, threads):
        self.element, self.threads = ELEMENT[case.dtype], threads
        self.nodes, self.inputs, self.initializers, self.feeds = [], [], [], {}

    def feed(self, name, array, element=None):
        self.inputs.append(helper.make_tensor_value_info(name, element or self.element, array.shape))
        self.feeds[name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
        return name

    def constant(self, name, array):
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, operator, inputs, outputs, domain="", **attributes):
        self.nodes.append(helper.make_node(operator, inputs, outputs, domain=domain, **attributes))

    def build(self, outputs, aliases=()):
        """outputs: [(name, shape)], the first is the result; an alias writes over the input of that name."""
        declared = [helper.make_tensor_value_info(name, self.element, shape) for name, shape in outputs]
        graph = helper.make_graph(self.nodes, "race", self.inputs, declared, self.initializers)
        model = helper.make_model(graph, opset_imports=OPSETS, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        for name, value in self.feeds.items():
            binding.bind_ortvalue_input(name, value)
        for name, _ in outputs:
            if name in dict(aliases):
                binding.bind_ortvalue_output(name, self.feeds[dict(aliases)[name]])
            else:
                binding.bind_output(name, "cpu")

        def run():
            session.run_with_iobinding(binding)
            return binding.get_outputs()[0]

        return run


def tokens_first(array):
    """(batch, heads, length, dim) -> (batch, length, heads * dim)"""
    batch, heads, length, dim = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch, length, heads * dim)


def attention_23(case, arrays, threads):
    graph = Graph(case, threads)
    names = [graph.feed(name, arrays[name]) for name in ("q", "k", "v")]
    graph.node("Attention", names, ["y"], is_causal=int(case.causal))
    return graph.build([("y", arrays["q"].shape)])


def multi_head(case, arrays, threads):
    batch, heads, _, queries, _, dim = case.shape
    graph = Graph(case, threads)
    names = [graph.feed(name, tokens_first(arrays[name])) for name in ("q", "k", "v")]
    graph.node(
        "MultiHeadAttention",
        names,
        ["y"],
        "com.microsoft",
        num_heads=heads,
        unidirectional=int(case.causal),
    )
    return graph.build([("y", (batch, queries, heads * dim))])


def group_query(case, arrays, threads):
    """Always causal. In a decode step all but the last key are the past, which the present overwrites in place."""
    batch, heads, kv_heads, queries, keys, dim = case.shape
    graph = Graph(case, threads)
    past = keys - queries
    names = [graph.feed("q", tokens_first(arrays["q"]))]
    names += [graph.feed(name, tokens_first(arrays[name][:, :, past:])) for name in ("k", "v")]
    aliases = []
    if past:
        names += [graph.feed("past_" + name, arrays[name]) for name in ("k", "v")]
        aliases = [("present_k", "past_k"), ("present_v", "past_v")]
    else:
        names += ["", ""]
    names.append(graph.feed("seqlens_k", np.full(batch, keys - 1, np.int32), TensorProto.INT32))
    names.append(graph.feed("total", np.array([keys], np.int32), TensorProto.INT32))
    graph.node(
        "GroupQueryAttention",
        names,
        ["y", "present_k", "present_v"],
        "com.microsoft",
        num_heads=heads,
        kv_num_heads=kv_heads,
    )
    cache = (batch, kv_heads, keys, dim)
    return graph.build(
        [("y", (batch, queries, heads * dim)), ("present_k", cache), ("present_v", cache)], aliases
    )


def layer_with(operator):
    def build(case, arrays, threads):
        batch, heads, kv_heads, queries, _, dim = case.shape
        graph = Graph(case, threads)
        graph.feed("x", arrays["x"])
        for name in ("w_q", "w_k", "w_v", "w_o"):
            graph.constant(name, arrays[name].T)
        for name in ("q", "k", "v"):
            graph.node("MatMul", ["x", "w_" + name], [name])
        if operator == "MultiHeadAttention":
            graph.node(operator, ["q", "k", "v"], ["context"], "com.microsoft", num_heads=heads)
        else:
            graph.node(
                operator, ["q", "k", "v"], ["context"], q_num_heads=heads, kv_num_heads=kv_heads, is_causal=0
            )
        graph.node("MatMul", ["context", "w_o"], ["y"])
        return graph.build([("y", (batch, queries, heads * dim))])

    return build


def candidates(case):
    if case.role in ("layer", "projection"):
        found = [("MatMul, Attention-23", layer_with("Attention"))]
        if not case.is_grouped:
            found.append(("MatMul, MultiHeadAttention", layer_with("MultiHeadAttention")))
        return found
    found = [("Attention-23", attention_23)]
    if not case.is_grouped:
        found.append(("MultiHeadAttention", multi_head))
    if case.causal or case.role == "decode":
        found.append(("GroupQueryAttention", group_query))
    return found


def ways(case, arrays, threads):
    """Yields (name, run) for every operator that accepts the case; run() returns the result."""
    if case.role in ("backward", "training"):
        return
    refusals = []
    for name, build in candidates(case):
        try:
            run = build(case, arrays, threads)
            run()
        except Exception as refusal:  # onnxruntime has an exception type per failure, without a parent
            refusals.append(f"{name}: {str(refusal).splitlines()[0][:100]}")
            continue
        yield name, run
    if len(refusals) == len(candidates(case)):
        raise NotImplementedError("; ".join(refusals))


def to_array(result, case):
    array = result.numpy()
    if case.role in ("prefill", "decode") and array.ndim == 3:
        batch, heads, _, queries, _, dim = case.shape
        return array.reshape(batch, queries, heads, dim).transpose(0, 2, 1, 3)
    return array


def version():
    return f"{onnxruntime.__version__} (onnx {onnx.__version__})"
