# SPDX-License-Identifier: Apache-2.0
"""Models of transformers that compute some attention themselves: they keep doing so, as with "eager", and say it once.

Imported through heed.transformers.
"""

from __future__ import annotations

import functools
import logging
import sys

import torch
from transformers import PreTrainedModel

__all__ = ["serve_models_with_attention_of_their_own"]

_logger = logging.getLogger("heed.transformers")
names: set[str] = set()  # what heed is registered as
_told: set[str] = set()  # modules of models that were told


def _tables_of_attention(module: str) -> list[dict[str, type]]:
    """Where a file of transformers looks its attention classes up by the implementation's name, in place of asking the interface."""
    values = list(vars(sys.modules[module]).values()) if module in sys.modules else []
    return [
        value for value in values
        if isinstance(value, dict) and all(isinstance(c, type) and issubclass(c, torch.nn.Module) for c in value.values())
        and "eager" in value
    ]  # fmt: skip


def _teach(model: PreTrainedModel, name: str) -> None:
    """The model's own tables know the name, as "eager"; whoever is not asked for all of its attention hears of it once."""
    module = type(model).__module__
    tables = _tables_of_attention(module)
    for table in tables:
        table.setdefault(name, table["eager"])
    if module not in _told and (tables or not model._can_set_attn_implementation()):
        _told.add(module)
        _logger.warning(
            '%s: this model computes some attention itself, whatever attn_implementation says; it does so as with "eager", and heed '
            "computes the rest",
            type(model).__name__,
        )


def serve_models_with_attention_of_their_own(name: str) -> None:
    """Whenever a model is made or switched to this name, its tables of attention classes learn it.

    transformers asks `get_correct_attn_implementation` of every model and part of one before it makes its layers.
    """
    is_first = not names
    names.add(name)
    if not is_first:
        return
    original = PreTrainedModel.get_correct_attn_implementation

    @functools.wraps(original)
    def get_correct_attn_implementation(self: PreTrainedModel, requested_attention: str | None, *others: bool, **options: bool) -> str:
        found = original(self, requested_attention, *others, **options)
        if found in names:
            _teach(self, found)
        return found

    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation
