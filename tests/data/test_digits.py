"""The embedded digits: those of scikit-learn, read without importing it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from anybit.data import sources


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the file in this test, whatever was read before."""
    monkeypatch.setattr(sources, "_digits_table", sources._digits_table.__wrapped__)


def rows(pixels: np.ndarray, labels: np.ndarray) -> list[list[int]]:
    return sorted(np.column_stack([pixels.reshape(len(labels), 64), labels]).astype(np.uint8).tolist())


def same_as_scikit_learn() -> bool:
    """Whether they are the same examples, whatever their order."""
    train, test = sources.digits().train, sources.digits().test
    pixels, labels = load_digits(return_X_y=True)
    ours = rows(torch.cat([train.x, test.x]).numpy(), torch.cat([train.y, test.y]).numpy())
    return ours == rows(np.round(pixels * (255 / 16)), labels)


def test_they_are_read_without_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "sklearn.datasets", None)
        sources.digits()
    assert same_as_scikit_learn()


def test_a_scikit_learn_that_keeps_them_elsewhere_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    elsewhere = importlib.machinery.ModuleSpec("sklearn", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: elsewhere)
    assert same_as_scikit_learn()
