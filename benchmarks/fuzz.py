"""Damage every kind of file that anybit reads, and read it: python benchmarks/fuzz.py --reader archive --minutes 10

Nothing but AnybitError may come out; no file outside the reader's own folder may be opened; no code may be found by
name, no process started, no socket opened; memory is limited to what reading an intact file takes, plus 1 GiB. Without
--reader all readers run side by side. Writes results/reliability/fuzz.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

from mutate import Mutate

from anybit.environment import environment
from anybit.errors import AnybitError

ROOM = 1 << 30
SLOW_S, STUCK_S = 10.0, 120.0
"""Seconds of computing, and of waiting, that no file may take; other processes can make a reader wait."""
_CODE = {"pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "socket.connect"}


@dataclass(frozen=True)
class Reader:
    """A file that lies in a folder, how it gets damaged, and everything that reads it."""

    file: Path
    mutate: Mutate
    read: Callable[[], object]


@dataclass
class Found:
    """What a reader did with damaged files."""

    files: int = 0
    refused: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


class Guard:
    """Sees what a reader does to the world outside its folder. Audit hooks cannot be removed, so there is one."""

    _hooked: Guard | None = None

    def __init__(self) -> None:
        self.home: str | None = None
        self.seen: list[str] = []

    @classmethod
    def installed(cls) -> Guard:
        if cls._hooked is None:
            cls._hooked = cls()
            sys.addaudithook(cls._hooked._audit)
        return cls._hooked

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.home is None:
            return
        if event in _CODE:
            self.seen.append(f"{event} {arguments!r}"[:200])
        elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith((self.home, sys.prefix, sys.base_prefix, _SOURCES, "/proc/")):
                self.seen.append(f"open {path}"[:200])


_SOURCES = str(Path(__file__).resolve().parents[1])


def attempt(reader: Reader, content: bytes) -> str | None:
    """Read one file: nothing if it was read, 'refused' if it was refused as it should be, else what went wrong."""
    guard = Guard.installed()
    reader.file.write_bytes(content)
    guard.seen, guard.home = [], os.path.realpath(reader.file.parents[1])
    started, cpu = time.perf_counter(), time.process_time()
    try:
        reader.read()
        outcome = None
    except AnybitError as error:
        text = str(error)
        outcome = "refused" if text.isprintable() and text else f"message {text!r}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        outcome = f"{type(error).__name__}: {str(error)[:150]} ({Path(last.filename).name}:{last.lineno})"
    finally:
        guard.home = None
    if guard.seen:
        return f"escape: {guard.seen[0]}"
    waited, computed = time.perf_counter() - started, time.process_time() - cpu
    if waited > STUCK_S or computed > SLOW_S:
        return f"slow: {computed:.0f} of {waited:.0f} s"
    return outcome


def fuzz(reader: Reader, seed: int, until: Callable[[int], bool]) -> Found:
    """Damage and read until told to stop. A file that was read in spite of its damage is damaged further."""
    draw, found, intact = random.Random(seed), Found(), reader.file.read_bytes()
    started, cpu, corpus = time.perf_counter(), time.process_time(), [intact]
    while not until(found.files):
        content = reader.mutate(draw.choice(corpus), draw)
        outcome = attempt(reader, content)
        found.files += 1
        if outcome == "refused":
            found.refused += 1
        elif outcome is not None and outcome not in found.failures:
            found.failures.append(outcome)
            Path(tempfile.gettempdir(), f"fuzz-{reader.file.name}-{len(found.failures)}").write_bytes(content)
        elif outcome is None and len(corpus) < 200:
            corpus.append(content)
    reader.file.write_bytes(intact)
    found.seconds, found.cpu_seconds = round(time.perf_counter() - started, 1), round(time.process_time() - cpu, 1)
    return found


def limited() -> None:
    """Take away the memory that an intact file does not need."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))


def _work(name: str, minutes: float, seed: int, out: str) -> None:
    from fuzz_readers import READERS
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as home:
        os.environ["ANYBIT_DATA"] = home
        reader = READERS[name](Path(home))
        reader.read()
        limited()
        end = time.monotonic() + 60 * minutes
        found = fuzz(reader, seed, lambda files: time.monotonic() >= end)
    Path(out, f"{name}.json").write_text(json.dumps(vars(found)))


def main() -> None:
    from fuzz_readers import READERS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reader", choices=list(READERS), action="append", help="default: all")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/reliability/fuzz.json"))
    given = parser.parse_args()
    names = given.reader or list(READERS)
    with tempfile.TemporaryDirectory() as folder:
        start = multiprocessing.get_context("spawn").Process
        workers = [start(target=_work, args=(name, given.minutes, given.seed, folder)) for name in names]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        found = {name: json.loads(Path(folder, f"{name}.json").read_text()) if Path(folder, f"{name}.json").exists()
                 else {"failures": ["the process ended"]} for name in names}
    old = json.loads(given.out.read_text())["readers"] if given.out.exists() else {}
    result = {"date": date.today().isoformat(), "environment": environment(), "minutes": given.minutes,
              "seed": given.seed, "readers": {**old, **found}}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["readers"], indent=1))
    sys.exit(1 if any(each["failures"] for each in found.values()) else 0)


if __name__ == "__main__":
    main()
