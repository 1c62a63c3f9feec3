"""The short version of benchmarks/fuzz.py: a seeded corpus of damaged files for every reader."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path

import pytest
from fuzz import Reader, attempt, fuzz
from fuzz_readers import READERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anybit.errors import AnybitError, ConfigError, RunError
from anybit.export.archive import read_archive
from anybit.files.reading import read_bytes, read_json, read_toml
from anybit.files.safetensors import save
from anybit.recipes import load, parse_override


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYBIT_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused(name: str, home: Path) -> None:
    reader = READERS[name](home)
    reader.read()
    found = fuzz(reader, 7, lambda files: files >= 120)
    assert found.failures == []
    assert found.refused > 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_any_seed_damages_an_archive_harmlessly(seed: int, home: Path) -> None:
    (home / "export").mkdir(exist_ok=True)
    if not (home / "export/model.safetensors").exists():
        (home / "export").rmdir()
        READERS["archive"](home)
        (home / "intact").write_bytes((home / "export/model.safetensors").read_bytes())
    file = home / "export/model.safetensors"
    reader = Reader(file, lambda content, draw: content, lambda: read_archive(file))
    from mutate import mutate_safetensors
    assert attempt(reader, mutate_safetensors((home / "intact").read_bytes(), random.Random(seed))) in (None, "refused")


def test_the_fuzzer_sees_what_it_is_there_for(home: Path) -> None:
    """A reader that crashes, unpickles, looks elsewhere or steers the terminal is found out."""
    (home / "x").mkdir()
    file, outside = home / "x/file", home.parent.parent / "secret"
    outside.write_text("")

    def crashes() -> None:
        raise IndexError("x")

    def unpickles() -> None:
        pickle.loads(b"cbuiltins\nprint\n.")

    def elsewhere() -> None:
        outside.read_bytes()

    def rude() -> None:
        raise KeyError(AnybitError("x"))

    for look, words in ((crashes, "IndexError"), (unpickles, "escape: pickle.find_class"), (elsewhere, "escape: open"),
                        (rude, "KeyError")):
        outcome = attempt(Reader(file, lambda content, draw: content, look), b"")
        assert outcome is not None
        assert words in outcome


def test_messages_are_one_line_whatever_the_names_in_a_file(home: Path) -> None:
    (home / "bad.toml").write_text('"a\\n\\u001b[2Jb" = 1\n')
    from anybit.config import from_recipe
    with pytest.raises(ConfigError) as caught:
        from_recipe(str(home / "bad.toml"))
    assert str(caught.value).isprintable()
    assert "\\x1b[2J" in str(caught.value)


@pytest.mark.parametrize("base", ["../secret", "/etc/hosts", "a/../../b", "..", "", "x/../y", "x" * 300, "a\nb"])
def test_a_recipe_extends_nothing_outside_its_folder(home: Path, base: str) -> None:
    (home / "mine").mkdir()
    (home / "secret.toml").write_text("rounds = 3\n")
    (home / "mine/a.toml").write_text(f"extends = {json.dumps(base)}\n")
    with pytest.raises(ConfigError, match="name a recipe in the same folder"):
        load(str(home / "mine/a.toml"))
    (home / "mine/below").mkdir()
    (home / "mine/below/base.toml").write_text("rounds = 7\n")
    (home / "mine/b.toml").write_text('extends = "below/base"\n')
    assert load(str(home / "mine/b.toml")) == {"rounds": 7}


@pytest.mark.parametrize("text", ["a = " + "[" * 3000, "a = " + "9" * 5000, "a = 1979-05-27", "a = [07:32:00]",
                                  "a = " + "[" * 60 + "]" * 60, "\xff"])
def test_toml_that_cannot_be_a_config(home: Path, text: str) -> None:
    (home / "x.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_toml(home / "x.toml")
    assert parse_override(text.replace(" ", ""))["a"] == text.replace(" ", "")[2:] if "=" in text else True


def test_pipes_devices_and_large_files_are_refused_before_they_are_read(home: Path) -> None:
    import os
    os.mkfifo(home / "pipe")
    (home / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero", "."):
        with pytest.raises(RunError, match="not a regular file"):
            read_bytes(home / name)
    with open(home / "large.json", "wb") as file:
        file.truncate(10**9)
    with pytest.raises(RunError, match=r"has 1,000,000,000 bytes: such a file has at most"):
        read_json(home / "large.json")


def test_a_small_archive_cannot_ask_for_all_memory(home: Path) -> None:
    """Steps of another shape would broadcast against the codes: 2 × 40 kB into 400 MB, or as much as one likes."""
    import torch
    n = 10_000
    save(home / "a", {"w": torch.zeros(n // 4, dtype=torch.uint8), "w.step": torch.ones(n, 1)},
         {"format": "anybit-archive-1", "activations": "{}",
          "packed": json.dumps({"w": {"bits": 2, "low": -2, "shape": [n]}})})
    with pytest.raises(RunError, match="has steps of shape"):
        read_archive(home / "a")
