# SPDX-License-Identifier: Apache-2.0
"""The operators Attention (opsets 23, 24 and 25) and RotaryEmbedding (opset 23) of the ONNX standard.

The onnx package is not needed. Names, defaults and rules are the standard's; docs/conformance.md lists what
the standard leaves open and what is chosen here.
"""

from heed.onnx._attention_operator import AttentionOutputs, attention
from heed.onnx._rotary_operator import rotary_embedding

__all__ = ["AttentionOutputs", "attention", "rotary_embedding"]
