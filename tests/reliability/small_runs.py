"""Small runs of the command line, trained in a moment."""

from __future__ import annotations

from pathlib import Path

from anybit.cli.main import run as command

OWN = ["--import", "net_models"]
_SETTINGS = ["model.name=net_models:small", "rounds=3", "cohort=2", "checkpoint_every=1", "evaluation.every=1", "threads=1",
             "evaluation.bits=[32,2]", 'evaluation.sites=["W"]', 'evaluation.steps=["mse"]', "engine=sequential", "--quiet"]


def train(path: Path, seed: int) -> None:
    """Train a run of three rounds."""
    assert command(["run", "quickstart/mqat", f"seed={seed}", *_SETTINGS, "--path", str(path), *OWN]) == 0


def flip(file: Path, at: float) -> None:
    """Flip a bit, at this part of a file."""
    content = bytearray(file.read_bytes())
    content[int(at * (len(content) - 1))] ^= 1
    file.write_bytes(content)
