from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from anybit.errors import RunError
from anybit.export.archive import read_archive, write_archive
from anybit.export.exporting import Exporter
from anybit.export.subject import Subject
from anybit.quant.grid import Width, quantize

DOCS = Path(__file__).parents[2] / "docs/export.md"


@pytest.mark.parametrize("width", ["W8", "W6", "W4", "W3", "W2", "W4A8", "WA5"])
def test_the_round_trip_is_exact(subject: Subject, tmp_path: Path, width: str) -> None:
    path, wanted = tmp_path / "model.safetensors", Width.parse(width)
    write_archive(path, subject, wanted)
    state, facts = read_archive(path)
    assert facts["width"] == str(wanted)
    assert set(state) == set(subject.model.state_dict())
    for name, value in subject.model.state_dict().items():
        site = f"{name}_quantizer"
        expected = quantize(value, subject.grid(site, wanted)) if site in subject.quantizers else value
        assert torch.equal(state[name], expected), name
    assert set(facts["activations"]) == (set(subject.activation_sites()) if wanted.activations != 32 else set())
    for site, entry in facts["activations"].items():
        assert entry["step"] == float(subject.grid(site, wanted).step)


def test_others_can_read_it(subject: Subject, tmp_path: Path) -> None:
    write_archive(tmp_path / "m.safetensors", subject, Width(3, 32))
    arrays = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    size = subject.model.get_parameter("head.weight").numel()
    assert arrays["head.weight"].dtype == np.uint8
    assert arrays["head.weight"].nbytes == -(-size * 3 // 8)


def test_the_numpy_loader_of_the_documentation(subject: Subject, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    code = next(block for block in blocks if "def load_archive" in block)
    assert re.findall(r"^(?:import|from) (\w+)", code, re.M) == ["hashlib", "json", "numpy"]
    write_archive(tmp_path / "m.safetensors", subject, Width(3, 32))
    scope: dict[str, Any] = {}
    exec(code, scope)
    loaded = scope["load_archive"](tmp_path / "m.safetensors")
    expected, _ = read_archive(tmp_path / "m.safetensors")
    assert set(loaded) == set(expected)
    for name, value in expected.items():
        assert np.array_equal(loaded[name], value.numpy()), name
    written = (tmp_path / "m.safetensors").read_bytes()
    header = 8 + int.from_bytes(written[:8], "little")
    for at in (*range(8, header, 41), *range(header, len(written), 997)):
        (tmp_path / "m.safetensors").write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1:])
        with pytest.raises((ValueError, KeyError)):
            scope["load_archive"](tmp_path / "m.safetensors")


def test_the_verb_verifies_it(exporter: Exporter) -> None:
    artifact = exporter.export(Width(4, 32), "archive")
    assert artifact.file == "model.w4.safetensors"
    assert not artifact.rejected
    assert artifact.verdict.agreement == 1
    weights = sum(artifact.weights.values())
    assert artifact.bytes < weights / 2 + 6000


def test_damage_is_noticed(subject: Subject, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write_archive(path, subject, Width(4, 32))
    written = path.read_bytes()
    for at in range(0, 8 + int.from_bytes(written[:8], "little"), 3):
        path.write_bytes(written[:at] + bytes([written[at] ^ 1 << at % 8]) + written[at + 1:])
        with pytest.raises(RunError, match="is damaged"):
            read_archive(path)
    content = bytearray(written)
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match="SHA-256"):
        read_archive(path)
    path.write_bytes(bytes(content[:-5]))
    with pytest.raises(RunError, match="is damaged"):
        read_archive(path)
