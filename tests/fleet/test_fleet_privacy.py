"""Privacy on a fleet: the model of the sequential engine, answers that say no more than needed, secret draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anybit.errors import ConfigError
from anybit.fleet.flower import Message
from anybit.fleet.server_app import serve
from anybit.training.run_folder import RunFolder
from tests.fleet.conftest import LocalGrid, fleet, here_and_there, listening, nodes, small

PRIVATE = ["privacy.clip=0.3", "privacy.noise=0.5", "privacy.delta=1e-3", "fleet.calibration=server"]
LOCAL = [*PRIVATE, "privacy.where=local", "fleet.tries=1"]


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize("overrides", [
    PRIVATE, [*PRIVATE, "ranges.learned=true"], [*PRIVATE, "privacy.sampling=poisson", "privacy.clients=4", "cohort=2"],
    [*LOCAL, "cohort=3"], ["privacy.clip=0.3", "fleet.calibration=server"]],
    ids=["central", "learned", "poisson", "local", "clip alone"])
def test_the_server_model_is_that_of_the_sequential_engine(overrides: list[str]) -> None:
    _, there = here_and_there(*overrides)
    assert ("privacy" in there.evaluation) == (len(overrides) > 2)


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize("overrides", [PRIVATE, LOCAL], ids=["central", "local"])
def test_an_answer_and_the_log_tell_a_delta_and_no_more(overrides: list[str]) -> None:
    answers, log = list[Message](), list[dict[str, Any]]()
    grid = LocalGrid(nodes(4))
    grid.faults = dict.fromkeys(range(4), lambda question, answer: [answers.append(answer) or answer])
    there = fleet(small(*overrides), grid)
    listening(there.devices, log)
    there.train()
    assert {key for answer in answers for key in answer.content.config_records["answer"]} == {"client", "round", "width"}
    told = [device for entry in log for device in entry.get("devices", [])]
    assert told
    assert {key for device in told for key in device} == {"client", "width", "bytes"}


@pytest.mark.usefixtures("own_models")
def test_noise_of_a_real_fleet_is_not_that_of_its_config(tmp_path: Path) -> None:
    weights = []
    for name in ("one", "two"):
        serve(LocalGrid(nodes(4)), small(*PRIVATE), tmp_path / name, ["anybit_test_models"])
        folder = RunFolder.open(tmp_path / name)
        weights.append(folder.model())
        assert folder.evaluation()["privacy"]["secret"] is True
        assert folder.evaluation()["privacy"]["clients"] is None  # devices come and go: no share is counted on
    assert all(bool((weights[0][name] != p).any()) for name, p in weights[1].items())


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(("overrides", "reason"), [
    ([*PRIVATE, "fleet.calibration=devices"], "not to be told"),
    ([*LOCAL, "fleet.tries=3"], "counts twice"),
    ([*PRIVATE[:2], "fleet.calibration=server"], "nobody knows how many devices")])
def test_a_fleet_that_could_not_keep_the_promise_does_not_start(overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        fleet(small(*overrides), LocalGrid(nodes(4)))
