"""Artifacts of models with several inputs, whole numbers among them, and several outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.api import Fitted
from anybit.export import bench

pytestmark = pytest.mark.artifacts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.side, self.head, self.aux = nn.Embedding(7, 6), nn.Linear(3, 6), nn.Linear(6, 4), nn.Linear(6, 2)

    def forward(self, ids: Tensor, mask: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu((self.embed(ids) * mask.unsqueeze(2)).sum(1) + self.side(side))
        return self.aux(hidden), self.head(hidden)


def fit(form: str) -> tuple[Fitted, dict[str, np.ndarray]]:
    draw = np.random.default_rng(0)
    given = {"side": draw.normal(size=(60, 3)).astype(np.float32), "ids": draw.integers(7, size=(60, 5)),
             "mask": draw.integers(2, size=(60, 5)).astype(bool)}
    labels = given["ids"][:, 0] // 2

    def part(rows: slice) -> tuple[Any, np.ndarray]:
        inputs = {name: x[rows] for name, x in given.items()}
        return inputs if form == "dict" else (inputs["ids"], inputs["mask"], inputs["side"]), labels[rows]

    torch.manual_seed(0)
    clients = [part(slice(0, 20)), part(slice(20, 40))]
    fitted = anybit.fit(Model(), clients, part(slice(40, 60)), rounds=3, cohort=2, output=1,
                        sites=anybit.SiteOptions(full_precision=("aux",)), server=anybit.ServerOptions(lr=0.05))
    return fitted, {name: x[40:] for name, x in given.items()}


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_onnx_artifacts_agree_with_the_evaluation(form: str, tmp_path: Path) -> None:
    from anybit.export.verify import session

    fitted, test = fit(form)
    for artifact in fitted.export(tmp_path, ["W8", "W4", "W8A8"]):
        assert artifact.verdict.agreement == 1
        if artifact.width != "WA8":  # whose activation step sizes are measured for the export
            assert artifact.verdict.artifact == fitted.scores[artifact.width].metric
    runner = session(tmp_path / "fp32.onnx")
    names = {"ids": "input_0", "mask": "input_1", "side": "input_2"} if form == "tuple" else {name: name for name in test}
    assert {x.name: x.type for x in runner.get_inputs()} == \
        {names["ids"]: "tensor(int64)", names["mask"]: "tensor(bool)", names["side"]: "tensor(float)"}
    found = runner.run(None, {names[name]: x for name, x in test.items()})
    with torch.no_grad():
        expected = fitted.model.eval()(**{name: torch.from_numpy(x) for name, x in test.items()})[1]
    assert len(found) == 1, "the selected output alone"
    assert np.allclose(found[0], expected.numpy(), atol=1e-5)
    assert f"{names['ids']}: 5" in (tmp_path / "README.md").read_text()
    assert bench.costs([tmp_path / "model.w4.onnx"], 0.01)["model.w4.onnx"].batches["32"].median > 0


def test_the_archive_is_verified(tmp_path: Path) -> None:
    fitted, _ = fit("dict")
    with pytest.warns(anybit.AnybitWarning, match="it has weights and no graph, so that no reader runs it: .* one float32"):
        (artifact,) = fitted.export(tmp_path, ["W4"], "archive")
    assert artifact.verdict.agreement == 1
    assert artifact.verdict.artifact == fitted.scores["W4"].metric
