# SPDX-License-Identifier: Apache-2.0
"""Runs the heed tool for the tests, in a folder of its own."""

import json
import os
import pty
import subprocess

import numpy as np

TOOL = os.environ.get("HEED_TOOL", "")


def environment(**changes):
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "HEED_TARGET", "HEED_NUM_THREADS")
    }
    # mpirun wants this twice where the tests run as root, as they do in containers.
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**kept, **as_root, "TERM": "xterm", **changes}


def heed(folder, *arguments, **changes):
    """The finished process, its output as text."""
    words = [str(word) for word in arguments]
    return subprocess.run(
        [TOOL, *words],
        cwd=folder,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def json_of(folder, *arguments):
    """The one object that --json prints; nothing may be on stderr."""
    ended = heed(folder, *arguments, "--json")
    assert (ended.returncode, ended.stderr) == (
        0,
        "",
    ), f"heed {' '.join(map(str, arguments))}: {ended.stderr}"
    return json.loads(ended.stdout)


def on_a_terminal(folder, *arguments, **changes):
    """(stdout, stderr) of a run whose two streams are terminals."""
    streams = [pty.openpty(), pty.openpty()]
    with subprocess.Popen(
        [TOOL, *arguments], cwd=folder, env=environment(**changes), stdout=streams[0][1], stderr=streams[1][1]
    ) as process:
        texts = []
        for ours, theirs in streams:
            os.close(theirs)
            text = b""
            try:
                while chunk := os.read(ours, 4096):
                    text += chunk
            except OSError:  # the other end is closed
                pass
            os.close(ours)
            texts.append(text.decode())
    assert process.returncode == 0, texts
    return texts


def contents(folder):
    """Every file below a folder with its bytes, to see that nothing changed."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_near(found, expected, tolerance):
    """Counts the elements that are off, so that a failure says how many."""
    assert found.shape == expected.shape
    off = int(np.sum(~(np.abs(found.astype(np.float64) - expected) <= tolerance)))
    assert off == 0, f"{off} of {expected.size} elements are off by more than {tolerance}"


def write_sample(folder, kv_heads=2, biases=False, seed=0):
    """w.safetensors and x.npy of a layer with model_dim 16 and 4 heads; returns (weights, x)."""
    from safetensors.numpy import save_file

    random = np.random.default_rng(seed)
    weights = {
        f"W_{name}.weight": random.normal(0, 0.4, (rows, 16)).astype(np.float32)
        for name, rows in [("q", 16), ("k", 4 * kv_heads), ("v", 4 * kv_heads), ("o", 16)]
    }
    if biases:
        weights |= {
            name.replace("weight", "bias"): random.normal(size=matrix.shape[0]).astype(np.float32)
            for name, matrix in list(weights.items())
        }
    x = random.normal(size=(2, 7, 16)).astype(np.float32)
    save_file(weights, folder / "w.safetensors")
    np.save(folder / "x.npy", x)
    return weights, x
