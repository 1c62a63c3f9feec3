"""Tables in the docs are those of the files in results/."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def measured() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measured", ROOT / "tools/measured.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["docs/deployment.md", "docs/privacy.md", "docs/reliability.md"])
def test_tables_are_made_of_results(name: str, measured: ModuleType) -> None:
    assert name in measured.PAGES
    assert measured.page(name) == (ROOT / name).read_text(), f"{name} is not what results/ say: python tools/measured.py"


def test_every_reader_of_the_fuzzer_has_a_line(measured: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from fuzz_readers import READERS
    assert set(measured.READERS) == set(READERS)
