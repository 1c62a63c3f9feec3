"""Carousel as a whole: resumed to the byte, with an average that is shipped or not, on grids that suit the activations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import anybit
from anybit.config import Config, chosen, from_recipe
from anybit.errors import ConfigError
from anybit.federated.state import trained_table
from anybit.federated.variants import StepRule
from anybit.quant.calibrate import activation_table, one_sided_layers
from anybit.quant.ranges import ActivationRule
from anybit.quant.sites import SiteOptions, prepare, quantizers
from anybit.schema import read
from anybit.training.build import build_task
from anybit.training.loop import Simulation, begin, train
from anybit.training.opening import open_run
from anybit.training.reading import RunRecord
from anybit.training.run_folder import RunFolder
from tests.parity.cases import training as begun

Arrays = tuple[np.ndarray, np.ndarray]
FEW: dict[str, Any] = {"rounds": 5, "cohort": 3, "client": anybit.ClientOptions(lr=0.1, batch_size=8), "checkpoint_every": 2,
                       "evaluation": anybit.EvaluationOptions(every=100, also=(2,), bits=(32, 4, 2), sites=("W",),
                                                              steps=("table",))}
ALL = {"variant": anybit.carousel(sites="WA"), "ranges": anybit.RangeOptions(follow=True, learned=True),
       "server": anybit.ServerOptions(lr=0.05, schedule="linear", decay=0.7, average=0.9)}
"""Everything that changes from round to round, and is not in the weights."""


def content(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != "timing.jsonl")
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def last_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    folder = RunFolder.open(path)
    return dict(folder.load_checkpoint(folder.checkpoints()[-1], torch.device("cpu")).tensors)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_run_that_was_cut_ends_with_the_bytes_of_one_that_was_not(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                                    tmp_path: Path, engine: str) -> None:
    """Cut in round 3, whose checkpoint is not written: it goes on from round 2. Twice, the second time in round 5."""
    def cut(progress: anybit.Progress) -> None:
        if progress.round in (3, 5):
            raise KeyboardInterrupt

    def fit(name: str, **more: Any) -> None:
        anybit.fit(mlp, clients, held_out, path=tmp_path / name, engine=engine, **ALL, **FEW, **more)  # type: ignore[arg-type]

    fit("whole")
    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            fit("cut", resume=resume, on_round=cut if not resume else lambda p: cut(p) if p.round == 5 else None)
    fit("cut", resume=True)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")
    assert (tmp_path / "whole/checkpoints/round-000004.safetensors").exists()


def test_a_checkpoint_has_a_slot_for_the_average_and_for_the_scales(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                                  tmp_path: Path) -> None:
    fitted = anybit.fit(mlp, clients, held_out, path=tmp_path / "run", **ALL, **FEW)  # type: ignore[arg-type]
    kept = last_checkpoint(tmp_path / "run")
    parameters, sites = [n for n, _ in mlp.named_parameters()], ["0.weight_quantizer", "2.weight_quantizer"]
    assert [n for n in kept if n.startswith("average/")] == sorted(f"average/{n}" for n in parameters)
    assert [n for n in kept if n.startswith("rms/")] == [f"rms/{site}" for site in sites]
    for name, p in mlp.named_parameters():
        assert not torch.equal(kept[f"average/{name}"], kept[f"w/{name}"])
        if name.endswith("weight"):
            assert torch.allclose(kept[f"rms/{name}_quantizer"], p.detach().square().mean().sqrt())
    assert [n for n in kept if "log_step" in n] == ["w/log_step/2.input_quantizer"], "weights follow, the image is kept"
    # linear goes down to 0, so the last weights are shipped, with the step sizes of their scale
    w = load_file(tmp_path / "run/model.safetensors")
    assert all(torch.equal(w[n], kept[f"w/{n}"]) for n in parameters)
    for site in sites:
        name = site.removesuffix("_quantizer")
        scale = w[name].square().mean().sqrt() / kept[f"rms/{site}"]
        assert not torch.isclose(scale, torch.ones(()), rtol=1e-3)
        assert torch.allclose(fitted.steps.steps[site], kept[f"table/{site}"] * scale)


def test_without_follow_and_average_a_checkpoint_is_as_it_always_was(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                                   tmp_path: Path) -> None:
    anybit.fit(mlp, clients, held_out, path=tmp_path / "run", **FEW)
    assert {name.partition("/")[0] for name in last_checkpoint(tmp_path / "run")} == {"w", "optimizer", "table"}


@pytest.mark.parametrize("deliver", [None, "average", "last"])
def test_what_is_shipped_is_what_is_scored(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path,
                                           deliver: Any) -> None:
    """With a constant rate the average, unless asked otherwise; the other one is scored beside it."""
    server = anybit.ServerOptions(lr=0.2, schedule="constant", average=0.9, deliver=deliver)
    fitted = anybit.fit(mlp, clients, held_out, anybit.carousel(), path=tmp_path / "run", server=server,
                        ranges=anybit.RangeOptions(follow=True), **FEW)
    kept, shipped = last_checkpoint(tmp_path / "run"), load_file(tmp_path / "run/model.safetensors")
    slot, other = ("w", "average") if deliver == "last" else ("average", "last")
    for name, p in fitted.model.named_parameters():
        assert torch.equal(shipped[name], kept[f"{slot}/{name}"])
        assert torch.equal(p, shipped[name])
    evaluations = {m["round"]: m["evaluation"] for m in fitted.metrics if "evaluation" in m}
    assert list(evaluations) == [2, 5], "also, and the last"
    assert evaluations[5]["scores"] == fitted.evaluation["grid"]["table"]
    assert set(evaluations[5]) == {"steps", "scores", "layers_at", "layers", other}
    assert set(evaluations[5][other]) == {"FP32", "W4", "W2"}
    assert evaluations[5][other]["W2"] != evaluations[5]["scores"]["W2"]
    assert anybit.Run.load(tmp_path / "run", model=mlp).metrics == fitted.metrics


def test_without_an_average_nothing_else_is_scored(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    fitted = anybit.fit(mlp, clients, held_out, anybit.carousel(), **FEW)
    assert set(fitted.metrics[-1]["evaluation"]) == {"steps", "scores", "layers_at", "layers"}


def test_an_opened_run_finds_the_steps_of_what_it_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step rule starts from the training's step sizes at the scale of the average, as in the run's own evaluation."""
    (tmp_path / "anybit_own_net.py").write_text(
        "from torch import nn\n\ndef tiny():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    trusted = ["anybit_own_net"]
    config = from_recipe("carousel/digits", [
        "model.name=anybit_own_net:tiny", "rounds=3", "cohort=3", "server.lr=0.2", "server.schedule=constant",
        "server.average=0.9", "ranges.follow=true", "client.batch_size=64", "client.batches=even",
        'evaluation.steps=["rule"]', "evaluation.bits=[32, 2]"])
    opened = open_run(tmp_path / "run", config, lambda config: build_task(config, trusted), trusted=trusted)
    with opened.held():
        training = begin(opened.computation, opened.folder)
        train(training, Simulation(training))
    run = anybit.Run.load(tmp_path / "run", trusted=trusted)
    assert (run.config.server.deliver, run.config.sites.weight_grid) == ("average", "centred")
    rules: list[StepRule] = ["rule", "table"]
    for rule in rules:
        for width, score in run.evaluate(["FP32", "W2"], steps=rule).items():
            assert score._asdict() == pytest.approx(run.evaluation["grid"][rule][width])


def layers(*modules: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), *modules, nn.Linear(6, 4))


@pytest.mark.parametrize(("model", "expected"), [(layers(nn.ReLU()), ("2",)), (layers(nn.Tanh()), ()), (layers(), ()),
                                                 (layers(nn.Linear(6, 6), nn.Sigmoid()), ("3",))])
def test_inputs_that_are_never_negative_get_the_unsigned_grid(model: nn.Module, expected: Sequence[str], tmp_path: Path,
                                                            clients: list[Arrays], held_out: Arrays) -> None:
    """Seen at the start, and kept in the run: where carousel rounds activations, that is its choice."""
    fitted = anybit.fit(model, clients, held_out, anybit.carousel(sites="WA"), path=tmp_path / "run", **FEW)
    config = RunFolder.open(tmp_path / "run").stored_config()
    assert config.sites == SiteOptions("centred", "auto", tuple(expected), quantize_image=False)
    grids = {name: site.grid for name, site in quantizers(prepare(model, options=config.sites), "activations").items()}
    assert {name.partition(".")[0] for name, grid in grids.items() if grid == "unsigned"} == set(expected)
    assert {grid for name, grid in grids.items() if name.partition(".")[0] not in expected} == {"full"}
    assert np.isfinite(fitted.metrics[-1]["loss"])


def test_steps_are_those_of_each_sites_own_grid() -> None:
    """By cover at 2 bits: 3 levels above 0 after the ReLU, 1 above and 2 below on the full grid."""
    model, x = layers(nn.ReLU()), torch.randn(50, 8)
    w = {name: p.detach() for name, p in model.named_parameters()}
    options = SiteOptions(activation_grid="auto", one_sided=one_sided_layers(model, SiteOptions(), w, x))
    hidden = model[0](x).relu().detach()  # type: ignore[index]
    rules: list[ActivationRule] = ["cover", "minmax"]
    for rule in rules:
        steps = activation_table(model, options, w, x, rule).steps
        assert float(steps["2.input_quantizer"][0]) == pytest.approx(float(hidden.max()) / 3)
    cover = activation_table(model, options, w, x, "cover").steps["0.input_quantizer"][0]
    assert float(cover) == pytest.approx(max(float(x.max()), -float(x.min()) / 2))
    mse = activation_table(model, options, w, x, "mse").steps["2.input_quantizer"]
    unsigned = activation_table(model, SiteOptions(activation_grid="unsigned"), w, x, "mse").steps["2.input_quantizer"]
    assert torch.equal(mse, unsigned)


def test_a_training_chooses_what_its_config_leaves_open() -> None:
    carousel, mqat = anybit.carousel(), anybit.mqat()
    of = chosen(Config(), carousel.choices)
    assert (of.sites.weight_grid, of.sites.activation_grid, of.sites.quantize_image) == ("centred", "full", True)
    assert (of.ranges.project, of.ranges.follow) == (True, True)
    learned = chosen(Config(ranges=anybit.RangeOptions(learned=True)), carousel.choices)
    assert not learned.ranges.follow, "one of the two, unless both are asked for"
    assert not of.ranges.learned
    assert (of.server.schedule, of.server.average, of.server.deliver) == ("linear", 0.0, "last")
    both = chosen(Config(), anybit.carousel(sites="WA").choices)
    assert (both.sites.activation_grid, both.sites.quantize_image) == ("auto", False)
    assert (both.ranges.follow, both.ranges.learned) == (True, True), "weights follow, activations are learned"
    paper = chosen(Config(), mqat.choices)
    assert paper.sites == SiteOptions("full", "full", quantize_image=True)
    assert (paper.ranges.project, paper.ranges.follow, paper.server.schedule) == (False, False, "constant")
    assert not paper.ranges.learned
    for config in (of, both, paper):
        assert chosen(config, {**carousel.choices, "server.schedule": "cosine"}) == config, "nothing is open any more"


@pytest.mark.parametrize(("asked", "got"), [
    ({"follow": False}, (False, False)),  # the ranges of the start, for both
    ({"learned": False}, (True, False)), ({"learned": True}, (True, True)), ({"follow": True}, (True, True)),
    ({"follow": False, "learned": True}, (False, True)),
])
def test_where_carousel_rounds_activations_they_are_learned_unless_all_ranges_stay(
        asked: dict[str, bool], got: tuple[bool, bool]) -> None:
    ranges = chosen(Config(ranges=anybit.RangeOptions(**asked)), anybit.carousel(sites="WA").choices).ranges  # type: ignore[arg-type]
    assert (ranges.follow, ranges.learned) == got


def test_what_a_config_says_is_kept() -> None:
    config = from_recipe("carousel/digits", ["sites.weight_grid=narrow", "ranges.project=false", "ranges.follow=false",
                                                 "server.schedule=cosine", "server.average=0.5"])
    of = chosen(config, anybit.carousel().choices)
    assert (of.sites.weight_grid, of.ranges.project, of.ranges.follow, of.server.schedule, of.server.average) == \
        ("narrow", False, False, "cosine", 0.5)
    assert of.server.deliver == "last"
    steady = chosen(Config(server=anybit.ServerOptions(average=0.5)), {})
    assert steady.server.deliver == "average"


def test_a_run_projects_and_follows_only_where_it_is_asked_to() -> None:
    run = begun(anybit.carousel(), ranges=anybit.RangeOptions(follow=False))
    wide = {name: 100 * p for name, p in run.state.w.items()}
    clipped = run.computation.project(wide, run.table.steps)
    assert all(bool((clipped[n].abs() < wide[n].abs().max()).all()) for n in ("conv1.weight", "conv2.weight", "head.weight"))
    assert all(clipped[n] is wide[n] for n in ("norm.weight", "head.bias"))
    assert run.computation.given(run.table).at(wide).step_sizes == run.table.steps
    for variant in (anybit.mqat(), anybit.carousel(sites="A")):
        free = begun(variant)
        kept = free.computation.project(wide, free.table.steps)
        assert all(kept[name] is p for name, p in wide.items()), "nothing is rounded there, or nobody asked"


def test_following_needs_no_average_and_an_average_no_following() -> None:
    run = begun(anybit.carousel())
    doubled = {name: 2 * p for name, p in run.state.w.items()}
    assert run.state.average == {}
    for site, steps in run.computation.given(run.table).at(doubled).step_sizes.items():
        factor = 2 if "weight" in site else 1
        assert torch.allclose(steps, factor * run.table.steps[site])
    assert torch.allclose(trained_table(run.table, doubled, {}).steps["head.weight_quantizer"],
                          2 * run.table.steps["head.weight_quantizer"])


def test_where_only_weights_are_rounded_they_follow_or_are_learned(mlp: nn.Module, clients: list[Arrays],
                                                                   held_out: Arrays) -> None:
    with pytest.raises(ConfigError, match=r"^ranges.learned: .* choose one of ranges.follow and ranges.learned$"):
        anybit.fit(mlp, clients, held_out, anybit.carousel(), ranges=ALL["ranges"], **FEW)


@pytest.mark.parametrize(("settings", "message"), [
    ({"server": {"deliver": "average", "average": 0.0}}, "deliver = average: no average is kept; set average, e.g. to 0.99"),
    ({"server": {"decay": 0.0}}, "decay = 0.0: must be above 0 and at most 1"),
    ({"server": {"decay": 1.5}}, "decay = 1.5"), ({"server": {"average": -0.1}}, "average = -0.1"),
    ({"server": {"average": 1.0}}, "average = 1.0: must be at least 0 and below 1"),
    ({"ranges": {"spread": 0.0}}, "spread = 0.0: must be above 0"),
    ({"server": {"schedule": "liner"}}, "server.schedule = 'liner': must be one of"),
    ({"server": {"deliver": "best"}}, "server.deliver = 'best'"),
    ({"sites": {"weight_grid": "auto"}}, "sites.weight_grid = 'auto'"),
    ({"sites": {"activation_grid": "centered"}}, "did you mean 'centred'"),
    ({"ranges": {"folow": True}}, "did you mean 'follow'"),
    ({"ranges": {"weights": "rsm"}}, "did you mean 'rms'"), ({"evaluation": {"also": 3}}, "evaluation.also = 3")])
def test_settings_that_cannot_be_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(Config, settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_average_that_is_never_kept_cannot_be_delivered(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    """Left open, the average is the variant's choice, and that is none."""
    with pytest.raises(ConfigError, match=r"^server.deliver = average: no average is kept"):
        anybit.fit(mlp, clients, held_out, anybit.carousel(), server=anybit.ServerOptions(deliver="average"), **FEW)


def test_a_variant_can_only_choose_what_is_open() -> None:
    with pytest.raises(ConfigError, match=r"^the variant chooses 'server.schedul', .* did you mean 'server.schedule'\?$"):
        chosen(Config(), {"server.schedul": "linear"})


def test_the_list_at_fault_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^variant.activation_bits = \[32\]"):
        anybit.carousel(sites="WA", activation_bits=[32])


def test_an_unfinished_run_shows_the_weights_that_it_would_deliver(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                                   tmp_path: Path) -> None:
    server = anybit.ServerOptions(lr=0.05, schedule="constant", average=0.9)
    anybit.fit(mlp, clients, held_out, anybit.carousel(), path=tmp_path / "run", server=server, **FEW)
    shipped = load_file(tmp_path / "run/model.safetensors")
    (tmp_path / "run/evaluation.json").unlink()
    record = RunRecord(tmp_path / "run")
    assert all(torch.equal(w, shipped[name]) for name, w in record.weights.items())
    assert not torch.equal(last_checkpoint(tmp_path / "run")["w/0.weight"], shipped["0.weight"])


def test_a_weight_of_zeros_has_step_sizes_that_can_be_read(clients: list[Arrays], held_out: Arrays, tmp_path: Path) -> None:
    """It follows nothing: it has no scale. Its gradient is 0, because the layer behind it is zero, too."""
    model = nn.Sequential(nn.Linear(8, 3, bias=False), nn.Linear(3, 4))
    for layer in model:
        nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
    fitted = anybit.fit(model, clients, held_out, anybit.carousel(), path=tmp_path / "run",
                        ranges=anybit.RangeOptions(follow=True), **FEW)
    assert float(fitted.model[0].weight.detach().abs().max()) == 0  # type: ignore[index, union-attr]
    steps = anybit.Run.load(tmp_path / "run", model=model).steps().steps
    assert all(bool((step > 0).all()) for step in steps.values())
