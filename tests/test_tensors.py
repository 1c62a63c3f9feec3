from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anybit.errors import RunError
from anybit.files.safetensors import load, save
from anybit.files.writing import write_bytes

TENSORS = {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.tensor(7), "c": torch.zeros(0, 4),
           "d": torch.tensor([True, False]), "e": torch.tensor([1.5], dtype=torch.float64)}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[n], other[n]) and one[n].dtype == other[n].dtype for n in one)


def test_the_safetensors_library_reads_ours_and_we_read_theirs(tmp_path: Path) -> None:
    save(tmp_path / "ours", TENSORS, {"round": "3"})
    assert equal(safetensors.torch.load_file(tmp_path / "ours"), TENSORS)
    safetensors.torch.save_file(TENSORS, tmp_path / "theirs", {"round": "3"})
    tensors, metadata = load(tmp_path / "theirs")
    assert equal(tensors, TENSORS)
    assert metadata["round"] == "3"


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    save(tmp_path / "1", TENSORS, {"k": "v"})
    save(tmp_path / "2", dict(reversed(TENSORS.items())), {"k": "v"})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_a_flipped_bit_and_a_cut_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    save(path, TENSORS, {})
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunError, match="SHA-256"):
        load(path)
    path.write_bytes(whole[:-3])
    with pytest.raises(RunError, match="damaged"):
        load(path)


@pytest.mark.parametrize("entry", [{"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]},
                                   {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]},
                                   {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
                                   {"dtype": "O", "shape": [1], "data_offsets": [0, 8]},
                                   {"dtype": "F32", "shape": "x", "data_offsets": [0, 8]}, 3, None])
def test_lying_headers_are_refused_before_anything_is_allocated(tmp_path: Path, entry: object) -> None:
    text = json.dumps({"t": entry}).encode()
    (tmp_path / "t").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 8)
    with pytest.raises(RunError, match="damaged"):
        load(tmp_path / "t")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.binary(max_size=300))
def test_no_bytes_crash_the_reader(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(RunError):
        load(tmp_path / "x")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    write_bytes(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
