"""Starts `softad` again and again in processes of its own, forked from one that has imported everything.

A line on stdin is a JSON list: a home, a file for what is printed, arguments. The process id comes
back at once; its exit status once it has ended, for an empty line.
"""

import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path


def child(home, log, *argv):
    os.setsid()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored where tests run behind a shell
    os.environ["SOFTAD_HOME"] = home
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = 1
    try:
        from softadlib.workbook import cli

        status = cli.main(list(argv))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main():
    import torch
    from tqdm import tqdm

    from helpers.workspace import make_home
    from softadlib.workbook import cli
    from softadlib.workbook.notebooks import execute as batch  # noqa: F401

    torch.set_num_threads(1)
    # its own lock is one semaphore for all forks: killed inside, one would stop all that come after
    tqdm.set_lock(threading.RLock())
    with tempfile.TemporaryDirectory() as execute_on_ray:
        os.environ["SOFTAD_HOME"] = str(make_home(Path(execute_on_ray)))
        cli.main(["train", "tiny", "-j", "1"])  # whatever a first call brings in
    print("ready", flush=True)
    pids = []
    for line in sys.stdin:
        if line.strip():
            pid = os.fork()
            if not pid:
                child(*json.loads(line))
            pids.append(pid)
            print(pid, flush=True)
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(pids.pop(), 0)[1]), flush=True)


if __name__ == "__main__":
    main()
