"""The line of progress: the lowest width is always on it, and long trainings also speak where nobody watches."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

import anybit
from anybit.training import progress_line
from anybit.training.progress_line import fitting

SCORES = ["FP32 98.33", "W8 98.33", "W4 98.06", "W2 95.83"]


@pytest.mark.parametrize(("columns", "written"), [
    (49, "round 9/9  FP32 98.33 W8 98.33 W4 98.06 W2 95.83"), (48, "round 9/9  FP32 98.33 W8 98.33 W4 98.06 W2 95.83"),
    (47, "round 9/9  FP32 98.33 … W4 98.06 W2 95.83"), (40, "round 9/9  FP32 98.33 … W2 95.83"),
    (30, "round 9/9  W2 95.83"), (12, "round 9/9  W")])
def test_what_has_no_room_is_left_out_of_the_middle(columns: int, written: str) -> None:
    assert fitting("round 9/9", SCORES, columns) == written


def test_without_scores_the_line_is_its_head() -> None:
    assert fitting("round 9/9", [], 80) == "round 9/9"


def test_a_training_that_takes_longer_speaks_without_a_terminal(capsys: pytest.CaptureFixture[str],
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.eye(4, dtype=np.float32), np.arange(4)

    def said(progress: bool | None) -> list[str]:
        anybit.fit(nn.Sequential(nn.Linear(4, 4)), [(x, y)], (x, y), rounds=2, progress=progress,
                   evaluation=anybit.EvaluationOptions(bits=(32, 2), sites=()))
        return capsys.readouterr().err.splitlines()

    assert said(None) == [], "it was short"
    monkeypatch.setattr(progress_line, "PATIENCE", 0.0)
    first, last = said(None)
    assert first.startswith("round 1/2  loss ")
    assert last.startswith("round 2/2  loss ")
    assert "W2 " in last
    assert said(False) == []
