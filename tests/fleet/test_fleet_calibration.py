"""Activation steps from the devices' own statistics are those of all their images on one machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from anybit.fleet.calibration import Errors, check_errors, check_seen, merged_errors, merged_seen
from anybit.fleet.exchange import Reply
from anybit.fleet.flower import ConfigRecord, Message, RecordDict
from anybit.fleet.wire import Refused, to_record
from anybit.quant.calibrate import (
    activation_errors,
    activation_ranges,
    activation_seen,
    activation_table,
    grids_of_inputs,
    ranges_of,
    table_of,
)
from anybit.quant.ranges import RangeRule
from anybit.quant.sites import SiteOptions
from anybit.training.build import Components
from tests.fleet.conftest import LocalGrid, fleet, nodes, small

RULES: list[RangeRule] = ["minmax", "cover", "lsq", "mse"]
ANSWER = {"client": 0, "round": 0, "examples": 5, "seconds": 1.0}


@pytest.mark.parametrize("rule", RULES)
def test_merged_statistics_give_the_centralized_steps(mlp: nn.Module, blobs: Any, rule: RangeRule) -> None:
    w, options, images = {n: p.detach() for n, p in mlp.named_parameters()}, SiteOptions(), torch.from_numpy(blobs[0])
    central = activation_table(mlp, options, w, images, rule)
    parts = [images[:30], images[30:31], images[31:]]
    seen = merged_seen([activation_seen(mlp, options, w, part) for part in parts], len(images))
    merged = table_of(ranges_of(seen), rule, grids_of_inputs(mlp, options), lambda candidates: merged_errors(
        [Errors(len(part), activation_errors(mlp, options, w, part, candidates)) for part in parts]))
    for site, steps in central.steps.items():
        torch.testing.assert_close(merged.steps[site], steps, rtol=1e-5, atol=0)


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(("rule", "variant"), [*((rule, "mqat") for rule in RULES), ("mse", "carousel")])
def test_a_calibration_round_gives_the_steps_of_the_devices_images(rule: RangeRule, variant: str) -> None:
    """Every device sends the statistics of all its images: the steps of all of them together, each on its site's grid."""
    config = small(f"variant.name={variant}", "variant.sites=WA", f"ranges.activations={rule}",
                   "ranges.calibration_images=100000")
    grid = LocalGrid(nodes(4))
    training = fleet(config, grid)
    state, table = training.start()
    assert ("query.errors", 0) in grid.asked if rule == "mse" else ("query.errors", 0) not in grid.asked
    named = Components(config, ["anybit_test_models"])
    data = named.build_data()
    images = data.pipeline(data.train.x[torch.from_numpy(np.concatenate(named.build_split(data)))])
    sites = training.computation.config.sites
    assert sites.one_sided == (("3",) if variant == "carousel" else None)
    central = activation_table(training.computation.task.model, sites, state.w, images, rule)
    for site, steps in central.steps.items():
        torch.testing.assert_close(table.steps[site], steps, rtol=1e-4, atol=0)


@pytest.mark.usefixtures("own_models")
def test_the_server_sees_no_training_example() -> None:
    data = fleet(small("variant.sites=WA"), LocalGrid(nodes(4))).computation.task.data
    assert len(data.train) == len(data.test) == 360
    assert data.train.x is data.test.x


@pytest.mark.usefixtures("own_models")
def test_a_device_with_impossible_ranges_is_left_out() -> None:
    grid, said = LocalGrid(nodes(4)), list[str]()

    def lie(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type == "query.ranges":
            answer.content["seen"] = to_record({site: torch.tensor([1.0, 5.0, -5.0, 1.0, 1.0, 1.0, 0.0, 0.0])
                                                for site in ("1.input_quantizer", "3.input_quantizer")})
        return [answer]

    grid.faults[2] = lie
    training = fleet(small("variant.sites=WA", "rounds=1"), grid, said)
    _, table = training.start()
    assert any("calibration: client 2 is rejected: seen '1.input_quantizer': a range that cannot be" in t for t in said)
    without = LocalGrid({client: {} for client in (0, 1, 3)})
    config = small("variant.sites=WA", "rounds=1", "cohort=3", "ranges.calibration_images=48")
    _, expected = fleet(config, without).start()
    assert all(torch.equal(table.steps[site], expected.steps[site]) for site in expected.steps)


def test_lies_about_errors_are_named() -> None:
    candidates = {"a": torch.ones(150, 7)}
    for errors, reason in ((-torch.ones(150, 7), "a negative square"), (torch.ones(7), "shape"),
                           (torch.full((150, 7), torch.nan), "not finite")):
        content = RecordDict({"answer": ConfigRecord(dict(ANSWER)), "errors": to_record({"a": errors.double()})})
        with pytest.raises(Refused, match=reason):
            check_errors(Reply(0, content, "", False, 0), 0, candidates, 5)
    content = RecordDict({"answer": ConfigRecord(dict(ANSWER)), "seen": to_record({"a": torch.zeros(8)})})
    with pytest.raises(Refused, match="cannot be"):
        check_seen(Reply(0, content, "", False, 0), 0, ["a"])


def test_ranges_on_one_machine_are_unchanged(mlp: nn.Module, blobs: Any) -> None:
    w, images = {n: p.detach() for n, p in mlp.named_parameters()}, torch.from_numpy(blobs[0])
    first = activation_ranges(mlp, SiteOptions(), w, images)["0.input_quantizer"]
    assert float(first.low) == images.min()
    assert float(first.mean) == pytest.approx(float(images.abs().mean()), rel=1e-5)
    assert float(first.features) == 8
