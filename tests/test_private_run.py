"""A private run from its first round to its card: ε on the way, in its files, on its page, and no losses of clients."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.cli.console import Reporter
from anybit.errors import RunError
from anybit.federated.accountant import accountant
from anybit.fleet import server_app
from anybit.report.page import write_report
from anybit.sweeps.results import read_results
from anybit.training.reading import RunRecord
from tests.unrecorded import unrecorded

ROOT = Path(__file__).parents[1]
PRIVACY = anybit.PrivacyOptions(clip=0.3, noise=1.0, sampling="poisson", delta=1e-3)


def fitted(rounds: int = 3, **settings: Any) -> anybit.Fitted:
    draw, truth = np.random.default_rng(0), np.random.default_rng(1).normal(size=(5, 3))
    x = draw.normal(size=(90, 5)).astype(np.float32)
    y = (x @ truth).argmax(1)
    torch.manual_seed(0)
    clients = [(x[i:i + 3], y[i:i + 3]) for i in range(0, 60, 3)]
    return anybit.fit(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), clients, (x[60:], y[60:]), rounds=rounds,
                      cohort=5, engine="sequential", threads=1,
                      **{"privacy": PRIVACY, "server": anybit.ServerOptions(optimizer="sgd"), "progress": False,
                         "evaluation": anybit.EvaluationOptions(every=2, bits=(32, 2), sites=("W",), steps=()), **settings})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[anybit.Fitted, Path]:
    path = tmp_path_factory.mktemp("private") / "run"
    return fitted(path=path), path


def test_epsilon_is_in_the_files_and_losses_are_not(run: tuple[anybit.Fitted, Path]) -> None:
    books = accountant(PRIVACY, 5, 20)
    lines = [json.loads(line) for line in (run[1] / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("epsilon") for line in lines] == [None, books.epsilon(2), books.epsilon(3)]
    assert all("loss" not in line for line in lines)
    privacy = json.loads((run[1] / "evaluation.json").read_text())["privacy"]
    assert privacy == {**books.statement(3)}
    assert (privacy["delta"], privacy["rounds"], privacy["clients"], privacy["secret"]) == (1e-3, 3, 20, False)
    assert RunRecord(run[1]).read().metrics == lines


def test_page_and_card_tell_the_promise(run: tuple[anybit.Fitted, Path], tmp_path: Path) -> None:
    words = r"\(ε = [0-9.]+, δ = 0\.001\) per client \(add or remove a client\); noise drawn by the seed, a simulation"
    assert re.search(words, write_report([run[1]], tmp_path / "report").read_text())
    assert not (tmp_path / "report/loss.svg").exists()
    run[0].export(tmp_path / "out", ["W2"], "archive")
    assert re.search(f"Differential privacy of the training: {words}", (tmp_path / "out/README.md").read_text())
    (result,) = read_results([run[1]]).results
    assert all(point.loss is None for point in result.curve)


def test_progress_shows_epsilon_in_place_of_the_loss(capsys: pytest.CaptureFixture[str],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    reporter, said = Reporter(quiet=False), list[str]()
    monkeypatch.setattr(server_app, "_say", said.append)

    def on_round(progress: anybit.Progress) -> None:
        reporter.on_round(progress)
        server_app._say_round(progress)

    fitted(on_round=on_round, progress=True)
    shown = f"ε {accountant(PRIVACY, 5, 20).epsilon(3):.3g} "
    assert shown in said[-1]
    assert capsys.readouterr().err.count(shown) == 2, "by the line of fit and by that of the command line"
    assert not any("loss" in line or "nan" in line for line in said)


def test_a_run_that_goes_on_draws_the_noise_it_would_have_drawn(tmp_path: Path) -> None:
    fitted(rounds=2, path=tmp_path / "run")
    longer, whole = fitted(rounds=4, path=tmp_path / "run", resume=True), fitted(rounds=4)
    for name, p in whole.model.state_dict().items():
        assert torch.equal(longer.model.state_dict()[name], p)
    assert longer.evaluation["privacy"] == whole.evaluation["privacy"]


def test_a_damaged_promise_is_no_evaluation(run: tuple[anybit.Fitted, Path], tmp_path: Path) -> None:
    copy = unrecorded(Path(shutil.copytree(run[1], tmp_path / "run")))
    content = json.loads((copy / "evaluation.json").read_text())
    content["privacy"]["epsilon"] = "small"
    (copy / "evaluation.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match="not an evaluation"):
        _ = RunRecord(copy).evaluation


@pytest.mark.pages
def test_the_page_about_privacy_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/privacy.md").read_text(), re.DOTALL):
        exec(compile(block, "docs/privacy.md", "exec"), names)
    assert names["fitted"].evaluation["privacy"]["epsilon"] == pytest.approx(names["planned"])
    assert names["fitted"].scores["W2"].metric > 50
