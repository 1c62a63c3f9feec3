"""C artifacts on an emulated Cortex-M: every bit of the outputs is the host's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from anybit.export.c.export import CExporter
from anybit.export.c.host import run as run_on_host
from anybit.export.subject import Subject
from anybit.quant.grid import GridName, Width
from anybit.quant.sites import SiteOptions
from tests.export.cortex_m import PACKAGES, PROGRAMS, emulated
from tests.export.test_c import lenet, made, subject_of

pytestmark = pytest.mark.devices


@pytest.fixture(autouse=True)
def _programs() -> None:
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.fail(f"{', '.join(missing)} missing: {PACKAGES}")


@pytest.mark.parametrize(("core", "name", "grid", "width"), [
    ("m7", "lenet", "full", "W4"), ("m7", "lenet", "centred", "W2A8"), ("m4", "mobile", "full", "W4A8"),
    ("m3", "mlp", "centred", "W3"), ("m7", "resnet20", "full", "W2A8")])
def test_the_outputs_are_the_hosts(core: str, name: str, grid: GridName, width: str, tmp_path: Path) -> None:
    compare(made(name, grid), core, width, tmp_path)


def test_activations_that_are_never_negative(tmp_path: Path) -> None:
    compare(subject_of(lenet(), SiteOptions(activation_grid="unsigned")), "m4", "W2A8", tmp_path)


@pytest.mark.parametrize("width", ["W8A8", "W4A8", "W2A8"])
def test_blocks_with_a_row_a_place_and_a_word_that_are_not_whole(width: str, tmp_path: Path) -> None:
    """Two rows and two places at a time: 3 rows per group, 5×5 and 3×2 places, windows of 9, 24 and 36 numbers, gaps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        network = nn.Sequential(nn.Conv2d(1, 8, 3, 2, dilation=(1, 2), padding=(2, 3)), nn.ReLU(),
                                nn.Conv2d(8, 6, (2, 3), groups=2, padding=(0, 1), dilation=(2, 1), stride=(1, 2)), nn.ReLU(),
                                nn.Flatten(), nn.LazyLinear(7), nn.ReLU(), nn.Linear(7, 10))
        network(torch.zeros(1, 1, 8, 8))
        subject = subject_of(network, SiteOptions(weight_grid="centred", per_channel=True))
    compare(subject, "m4", width, tmp_path)


def compare(subject: Subject, core: str, width: str, folder: Path) -> None:
    """Run an artifact here and on a device, with eight images."""
    exporter, path = CExporter(subject, verify=False), folder / f"model.{width.lower()}.c"
    artifact, examples = exporter.export(path, Width.parse(width)), exporter.examples[:8]
    found = emulated(path, examples, (10,), core, folder)
    assert torch.equal(found.outputs, run_on_host(path, path.stem.replace(".", "_"), examples, (10,))[0])
    assert found.size is not None
    assert artifact.footprint is not None
    assert found.size.ram <= artifact.footprint.ram + 8
    print(f"\n{core} {width}: {max(found.instructions):,} instructions, {found.size}")
