"""A run's folder with its manifest: what is written is recorded there, and what is read is compared with it.

Whatever completes a step comes after the manifest that knows it, or counts only once the manifest does: config.json of a
new run and evaluation.json of a finished one are recorded before they are written, a checkpoint afterwards. So a
process may be killed between any two file operations, and every file is either as recorded or not yet part of the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anybit.errors import AnybitWarning, RunError
from anybit.files.digests import MANIFEST, Accepted, Digest, Digests, State
from anybit.files.holding import locked, own_folder
from anybit.files.reading import TEXT_LIMIT, parse_json, read_bytes
from anybit.files.safetensors import Loaded, from_bytes
from anybit.files.writing import write_bytes, writing
from anybit.training.run_files import CHECKPOINT, resume_with

METRICS = "metrics.jsonl"
RESULTS = ("evaluation.json", "model.safetensors", "steps.json")
"""What the last checkpoint can make anew."""
_TEXTS = ("config.json", "task.json", "environment.json", "extended.json", METRICS, "evaluation.json", "steps.json")
"""Read and compared when a run is opened; tensors, which can be large, when they are used."""
_ATTEMPTS = 5


class Ledger:
    """The files of a run, and the digests of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digests: Digests | None = None
        self._loaded = False
        self._held = False

    def file(self, name: str) -> Path:
        return self.path / name

    @property
    def kept(self) -> Path:
        """The folder of the checkpoints."""
        return own_folder(self.file("checkpoints"))

    @property
    def finished(self) -> bool:
        return self.file("evaluation.json").exists()

    @property
    def whole(self) -> bool:
        """Finished, with nothing of the result gone: else it can be made anew from the last checkpoint."""
        return all(self.file(name).exists() for name in RESULTS)

    @property
    def digests(self) -> Digests | None:
        """What the manifest says; none in folders of versions that wrote none."""
        if not self._loaded:
            self.reload()
        return self._digests

    def reload(self) -> None:
        """Read the manifest as it is now."""
        self._digests, self._loaded = Digests.read(self.path), True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder while training in it; another process may have written here since it was opened."""
        with locked(self.path):
            self.reload()
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def record(self, changes: Mapping[str, Accepted | None]) -> None:
        """Write down what files are from now on, or may be while they are replaced; none: no part of the run."""
        if self.digests is None:
            return
        changed = self.digests.changed(changes)
        if changed != self.digests:
            with self.writing(MANIFEST):
                changed.write(self.path)
            self._digests = changed

    def replace(self, name: str, content: bytes) -> None:
        """Exchange a file of the run for another: until it is done, both are accepted."""
        new, before = Digest.of(content), self.digests.files.get(name, (None,)) if self.digests else ()
        self.record({name: (new, *(digest for digest in before if digest != new))})
        with self.writing(name):
            write_bytes(self.file(name), content)
        self.record({name: (new,)})

    def settle(self) -> None:
        """Record what became of files that a killed process was replacing. The caller holds the lock."""
        for name, accepted in (self.digests.files if self.digests else {}).items():
            if len(accepted) > 1:
                content = self.checked(name)
                self.record({name: None if content is None else (Digest.of(content),)})

    def state(self, name: str) -> tuple[State, bytes | None]:
        """Compare a file with the manifest; a folder without one has nothing to compare, and every file is as it is."""
        path = self.file(name)
        content = read_bytes(path, TEXT_LIMIT if path.suffix == ".json" else None) if path.exists() else None
        if self.digests is None:
            return "ok", content
        growing = name == METRICS and not self.finished
        if growing and not self.checkpoints():
            return "ok", content  # without a checkpoint they are begun anew
        state = self.digests.state(name, content, growing)
        return ("ok" if state == "unknown" and (growing or content is None) else state), content

    def checked(self, name: str) -> bytes | None:
        """Read a file that is as recorded, none where there is and should be none; else raise, and name it."""
        for _ in range(_ATTEMPTS):  # a run that is still training may change both between our two looks
            state, content = self.state(name)
            seen = self._digests
            if state == "ok":
                return content
            self.reload()
            if self._digests == seen:
                break
        raise self._refusal(name, state, content)

    def _refusal(self, name: str, state: State, content: bytes | None) -> RunError:
        path, kept = self.file(name), self.checkpoints()
        if state == "unknown":
            return RunError(f"{path} is not in {MANIFEST}: it is no part of this run; remove it")
        sizes = [digest.size for digest in self.digests.files[name] if digest] if self.digests else []
        if name == METRICS and sizes and len(content or b"") < min(sizes):
            return self.too_short()
        fix = self._anew if name == METRICS else "restore it from a copy"
        if name in RESULTS and kept:
            fix = f"delete it, and '{resume_with(self.path)}' makes it anew from {kept[-1].name}"
        return RunError(f"{path} is missing; {fix}" if state == "missing" else
                        f"{path} is damaged, edited or another run's: its SHA-256 is not the one in {MANIFEST}; {fix}")

    def too_short(self) -> RunError:
        path = self.file(METRICS)
        return RunError(f"{path} is shorter than its checkpoint says: it was edited or truncated; {self._anew}")

    @property
    def _anew(self) -> str:
        result = " and evaluation.json" if self.finished else ""
        return f"restore it, or delete the folder 'checkpoints'{result} beside it to start again from round 0"

    def check(self) -> None:
        """Compare everything but tensors with the manifest, and see that the split is there."""
        if self.digests is None:
            nothing = "no" if self.file("task.json").exists() else "neither its data nor"
            warnings.warn(f"{self.path} was begun by an earlier version, which recorded {nothing} digests of its files: "
                          "whether these are the same is not checked", AnybitWarning, stacklevel=1)
            return
        for name in _TEXTS:
            if name not in RESULTS or (self.finished and self.file(name).exists()):  # else it is made anew
                self.checked(name)
        if "split.safetensors" in self.digests.files and not self.file("split.safetensors").exists():
            raise self._refusal("split.safetensors", "missing", None)

    def json(self, name: str) -> Any:
        """Read a JSON file that is as recorded."""
        content = self.checked(name)
        if content is None:
            raise RunError(f"{self.file(name)} does not exist")
        return parse_json(content, self.file(name))

    def tensors(self, name: str) -> Loaded:
        """Read (tensors, metadata) of a file that is as recorded."""
        content = self.checked(name)
        if content is None:
            raise RunError(f"{self.file(name)} does not exist")
        return from_bytes(content, str(self.file(name)))

    def checkpoints(self) -> list[Path]:
        """List the checkpoints of the run, oldest first; one that the manifest does not know was never completed."""
        if not self._held:  # somebody else may be training here
            self.reload()
        known = None if self.digests is None else self.digests.files
        return [path for path in self.found() if known is None or f"checkpoints/{path.name}" in known]

    def found(self) -> list[Path]:
        """List the checkpoints that lie in the folder, complete or not."""
        files = self.kept.glob("*.safetensors")
        return sorted((path for path in files if CHECKPOINT.fullmatch(path.name)), key=self.round_of)

    @staticmethod
    def round_of(checkpoint: Path) -> int:
        match = CHECKPOINT.fullmatch(checkpoint.name)
        return int(match[1]) if match else 0

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Stop the run when a disk is full or broken; what is there stays, and the run can go on from it."""
        try:
            yield
        except OSError as error:
            kept = self.checkpoints()
            again = f"continue with '{resume_with(self.path)}'" + (f" from {kept[-1].name}" if kept else "")
            with writing(self.file(name), f"fix the disk, then {'do it again' if self.whole else again}"):
                raise error
