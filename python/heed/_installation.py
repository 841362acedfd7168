# SPDX-License-Identifier: Apache-2.0
"""What this installation is: version, compiler, kernels, threads, and the libraries beside it."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

from heed import _heed

NEIGHBOURS = ("numpy", "ml_dtypes", "torch", "jax", "transformers", "onnx")


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution, without importing it.

    >>> version_of("no-such-distribution") is None
    True
    """
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def configuration() -> dict[str, Any]:
    """What show_config() prints, as a dictionary.

    >>> import heed
    >>> heed.configuration()["heed"] == heed.__version__
    True
    """
    return {
        "heed": _heed.version,
        "compiler": _heed.compiler(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": _heed.get_num_threads(),
        "kernels": _heed.kernel_names(),
        "beside": {name: version for name in NEIGHBOURS if (version := version_of(name))},
    }


def show_config() -> None:
    """Prints what a bug report should say about this installation.

    >>> import heed
    >>> heed.show_config()  # doctest: +ELLIPSIS
    heed      ...
    """
    for name, value in configuration().items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {version}" for key, version in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        print(f"{name:9} {value}")
