"""The examples in README and docs run as they are printed."""

from __future__ import annotations

import ast
import csv
import re
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import anybit

ROOT = Path(__file__).parents[1]


def blocks(file: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / file).read_text(), re.DOTALL)


def arrays(count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(count)
    y = draw.integers(10, size=count)
    x = draw.normal(size=(count, 1, 8, 8)) + y.reshape(-1, 1, 1, 1) / 3
    return x.astype(np.float32), y


def test_the_python_example_is_short_and_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("README.md")
    assert len([line for line in example.splitlines() if line]) <= 15
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    scores = ast.literal_eval(capsys.readouterr().out)
    assert list(scores) == ["FP32", "W8", "W4", "W2"]
    assert min(scores.values()) > 80
    assert (tmp_path / "runs/mine/evaluation.json").exists()


def test_the_table_in_the_readme_is_that_of_the_file() -> None:
    rows = csv.DictReader((ROOT / "results/demo/accuracy.csv").read_text().splitlines())
    columns = ("fedavg-1", "mqat-1", "carousel-1")
    expected = [f"| {row['width'].removeprefix('W').replace('FP', '')} | "
                f"{' | '.join(f'{float(row[column]):.2f}' for column in columns)} |" for row in rows]
    assert "\n".join(expected) in (ROOT / "README.md").read_text()


def test_the_callback_and_the_variant_in_the_docs_train(capsys: pytest.CaptureFixture[str]) -> None:
    callback, variant = blocks("docs/architecture.md")
    model, clients, test = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), [arrays(30)] * 10, arrays(30)
    exec(callback, {"anybit": anybit, "model": model, "clients": clients, "test": test})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(round) for round in range(1, 101)]
    assert "'W2'" in lines[-1]
    names: dict[str, object] = {}
    exec(variant, names)
    result = anybit.fit(model, clients[:2], test, names["stochastic_qat"](3), rounds=2, cohort=2)  # type: ignore[operator]
    assert result.evaluation["variant"] == "stochastic-qat"


def test_every_verb_in_the_readme_exists() -> None:
    from anybit.cli.main import app

    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"^anybit (\w+).* #", text, re.MULTILINE)) | {"cp"}
    assert named <= known
    assert known <= named


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
