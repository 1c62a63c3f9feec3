"""Archives of small networks, and the readers in C and JavaScript that open them."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anybit.export import exporting
from anybit.export.archive import write_archive
from anybit.export.c.host import FLAGS, compiler
from anybit.export.c.trace import traced
from anybit.export.subject import Subject
from anybit.models.resnet import ResNet
from anybit.quant.grid import GridName, Width
from anybit.quant.sites import SiteOptions
from tests.export.test_c import Mobile, lenet, subject_of

READERS = Path(exporting.__file__).parent / "readers"
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ALONE = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "NODE_NO_WARNINGS": "1"}
"""A reader keeps what it allocates until it ends; looking for leaks takes seconds."""
WIDTHS = ("W8", "W4", "W3", "W2", "W2A8")
EXAMPLES = 12


def resnet() -> nn.Module:
    """Two stages of a block: GroupNorm, a shortcut of every other pixel and new channels, a mean, one linear."""
    return ResNet(1, 10, (8, 16), 1, 2, "A", "torch")


def tiny() -> nn.Module:
    """A little of everything, for files that are damaged many times."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(2), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(4, 10))


NETWORKS = {"lenet": lenet, "resnet": resnet, "mobile": Mobile}


def made(network: Callable[[], nn.Module], grid: GridName) -> Subject:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return subject_of(network(), SiteOptions(weight_grid=grid, per_channel=network is Mobile))


Archives = Callable[[str, GridName], tuple[Subject, dict[str, Path]]]


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """Give a network on a grid and its archives by width: traced once, for both readers."""
    @functools.cache
    def written(name: str, grid: GridName) -> tuple[Subject, dict[str, Path]]:
        subject, folder = made(NETWORKS[name], grid), tmp_path_factory.mktemp(name)
        trace = traced(subject)
        paths = {width: folder / f"model.{width}.safetensors" for width in WIDTHS}
        for width, path in paths.items():
            write_archive(path, subject, Width.parse(width), lambda: trace)
        return subject, paths

    return written


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader in C with all warnings as errors, and with the sanitizers of the compiler where it has them."""
    program = tmp_path_factory.mktemp("reader") / "read"
    command = [*compiler(), *FLAGS, str(READERS / "read.c"), "-lm", "-o", str(program)]
    if subprocess.run([*command, *SANITIZED], capture_output=True, check=False).returncode:
        subprocess.run(command, check=True)
    return program


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "model.w3a8.safetensors"
    write_archive(path, made(tiny, "centred"), Width(3, 8))
    return path


def found(command: list[str], path: Path, subject: Subject) -> Tensor:
    """What a reader gives for the first examples of the test set, from raw bytes."""
    images = subject.data.test.x
    assert isinstance(images, Tensor)
    (path.parent / "inputs").write_bytes(images[:EXAMPLES].numpy().tobytes())
    subprocess.run([*command, str(path), str(path.parent / "inputs"), str(path.parent / "outputs")], check=True,
                   capture_output=True, env=ALONE)
    return torch.from_numpy(np.fromfile(path.parent / "outputs", np.float32).reshape(EXAMPLES, -1))


def resealed(content: bytes, old: str, new: str) -> bytes:
    """A file with other text in its header and a digest that fits."""
    start = 8 + int.from_bytes(content[:8], "little")
    text = content[8:start].decode()
    text = text.replace(re.findall('"sha256":"(.{64})"', text)[0], "0" * 64, 1).replace(old, new, 1)
    head = len(text).to_bytes(8, "little") + text.encode()
    digest = hashlib.sha256(head + content[start:]).hexdigest()
    return head.replace(b"0" * 64, digest.encode(), 1) + content[start:]
