# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own that have PyTorch already: forks of one that has imported it and done nothing else. To import it
takes each process 4 s."""

import atexit
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback


@functools.cache
def server():
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)  # ends it
    return process


def run(program, ranks=1):
    """What so many processes ended with, which run the program at once. It knows its rank, their number as ranks, and a folder of all."""
    print(json.dumps([program, ranks]), file=server().stdin, flush=True)
    return subprocess.CompletedProcess(program, *json.loads(server().stdout.readline()))


def become(program, rank, ranks, folder):
    """What a fork does, and its end."""
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
    status = 1
    try:
        exec(program, {"__name__": "__main__", "rank": rank, "ranks": ranks, "folder": folder})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def status_of(process, end):
    """The status that a process ended with; one that is not done by then is killed."""
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def serve():
    import torch.distributed
    import torch.nn.attention.bias  # noqa: F401  which heed.torch imports, and takes half of the time

    for line in sys.stdin:
        program, ranks = json.loads(line)
        with tempfile.TemporaryDirectory() as name:
            folder, processes = pathlib.Path(name), []
            for rank in range(ranks):
                process = os.fork()
                if process == 0:
                    become(program, rank, ranks, folder)
                processes.append(process)
            end = time.monotonic() + 300
            statuses = [status_of(process, end) for process in processes]
            said = ["".join((folder / f"{rank}.{kind}").read_text() for rank in range(ranks)) for kind in ("out", "err")]
        print(json.dumps([max(map(abs, statuses)), *said]), flush=True)


if __name__ == "__main__":
    serve()
