"""Reports of models with several tensors in a layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import anybit
from anybit.quant.sites import kind_of_site, prepare, quantizers
from anybit.report import plots, weights
from anybit.report.read import read_runs
from anybit.report.style import styled


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(9, 4), nn.LSTM(4, 4, batch_first=True)
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lstm(self.embedding(x))[0]
        out: Tensor = self.head(self.attention(x, x, x)[0].mean(1))
        return out


def test_the_kind_of_a_site_is_in_its_name() -> None:
    model = nn.ModuleDict({"a": Sequence(), "b": nn.GRUCell(2, 2), "c": nn.MultiheadAttention(4, 2, kdim=3, vdim=3),
                           "d": nn.Conv2d(1, 1, 1), "e": nn.RNN(2, 2, 2, bidirectional=True)})
    sites = quantizers(prepare(model))
    assert {name: kind_of_site(name) for name in sites} == {name: site.kind for name, site in sites.items()}


def test_every_tensor_of_a_layer_is_drawn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).integers(0, 9, (20, 5))
    anybit.fit(Sequence(), [(x, x[:, 0] % 2)], (x, x[:, 0] % 2), anybit.mqat(sites="WA"), rounds=1, path=tmp_path / "run",
               evaluation=anybit.EvaluationOptions(bits=(32, 2), sites=(), steps=("table",)),
               sites=anybit.SiteOptions(first_last_bits=8), engine="sequential")
    (run,) = read_runs([tmp_path / "run"])
    with styled():
        drawn = {plot.name: [label.get_text() for label in plot.figure.axes[1].get_xticklabels()]
                 for plot in plots.layer_plots([run])}
    assert drawn == {"layers-weights": ["embedding", "lstm.weight_ih_l0", "lstm.weight_hh_l0", "attention.out_proj",
                                        "attention.in_proj_weight", "head"],
                     "layers-activations": ["lstm.input_l0", "lstm.hidden_l0", "attention.out_proj", "attention.query",
                                            "attention.key", "attention.value", "head"]}
    sites = weights.weight_sites_of(run)
    assert [len(weights.grid_points(run, site)[2]) for site in sites] == [256, 4, 4, 4, 4, 256]
