"""A process that has imported torch once and forks for every command: each is a process of its own, seconds sooner."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


class Warm:
    """The parent's end of the line."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", "tests.e2e.warm"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=environment,
                                        cwd=Path(__file__).parents[2])

    def run(self, arguments: Sequence[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run the command in a fork that never had another command, with files as its output; 300 seconds at most."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            self.process.stdin.write(json.dumps([list(arguments), str(cwd), environment, str(out), str(err)]) + "\n")
            self.process.stdin.flush()
            code = int(self.process.stdout.readline())
            return subprocess.CompletedProcess(list(arguments), code, out.read_text(), err.read_text())

    def close(self) -> None:
        """End it by a signal: it would wait for as long as any fork of this process has its line open."""
        self.process.kill()
        self.process.communicate()


def _become(arguments: list[str], cwd: str, environment: dict[str, str], out: str, err: str) -> None:
    """Be what `python -m anybit ARGUMENTS` is in a folder."""
    signal.alarm(300)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    sys.argv[:] = ["anybit", *arguments]
    sys.path[0] = cwd
    from anybit.__main__ import main

    try:
        main()
    except SystemExit as ended:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 0)  # freeing what was imported would take a second


def _serve() -> None:
    """Fork for every line of the standard input, and say how each command ended."""
    for module in ("anybit.api", "anybit.cli.main", "anybit.cli.training", "anybit.engines.stacked",
                   "torch._dynamo"):  # which torch imports at the first step
        importlib.import_module(module)

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
