# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch.distributed as forks of one process, which imports PyTorch for all of them: a process of its own takes 4 s to do so.

A line of JSON, [what, ranks], runs `ranks.py torch what` on so many; another answers: [status, standard output, standard error].
"""

import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import traceback

import ranks
import torch.distributed  # noqa: F401


def run_as_rank(what, rank, size, folder):
    """What a fork does, and its end."""
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
    ranks.meeting |= {"init_method": (folder / "store").as_uri(), "rank": rank, "world_size": size}
    status = 1
    try:
        ranks.main("torch", what)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def status_of(process, end):
    """The status that a rank ended with; one that is not done by then is killed."""
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


for line in sys.stdin:
    what, size = json.loads(line)
    with tempfile.TemporaryDirectory() as name:
        folder, processes = pathlib.Path(name), []
        for rank in range(size):
            process = os.fork()
            if process == 0:
                run_as_rank(what, rank, size, folder)
            processes.append(process)
        end = time.monotonic() + 300
        statuses = [status_of(process, end) for process in processes]
        said = ["".join((folder / f"{rank}.{kind}").read_text() for rank in range(size)) for kind in ("out", "err")]
    print(json.dumps([max(map(abs, statuses)), *said]), flush=True)
