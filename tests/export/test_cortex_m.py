"""C artifacts on an emulated Cortex-M: every bit of the outputs is the host's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

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


def compare(subject: Subject, core: str, width: str, folder: Path) -> None:
    """Run an artifact here and on a device, with eight images."""
    exporter, path = CExporter(subject, verify=False), folder / f"model.{width.lower()}.c"
    artifact, examples = exporter.export(path, Width.parse(width)), exporter.examples[:8]
    found = emulated(path, examples, (10,), core, folder)
    assert torch.equal(found.outputs, run_on_host(path, path.stem.replace(".", "_"), examples, (10,))[0])
    assert found.size is not None
    assert artifact.footprint is not None
    assert found.size.ram == pytest.approx(artifact.footprint.ram, abs=8)
    print(f"\n{core} {width}: {max(found.instructions):,} instructions, {found.size}")
