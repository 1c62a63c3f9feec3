"""A SuperLink and four SuperNodes as real processes, with TLS and authentication, and what can go wrong with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from anybit.fleet.certificates import device_key, server_certificate
from anybit.fleet.project import Project
from tests.fleet.deployment import MOODY, TINY, Deployment, free_port

pytestmark = pytest.mark.fleet

GARBAGE, HANGING = 1, 2


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Widths 2, 4, 8 and 32; the device of 4 bits sends garbage, the one of 8 bits hangs in the second round."""
    path = tmp_path_factory.mktemp("fleet") / "project"
    project = Project("quickstart/mqat", [*TINY, "rounds=3", "fleet.deadline=75"], ["2", "4", "8", "32"],
                      port=free_port(), imports=["anybit_test_models"])
    made = Deployment(path, project)
    (made.server / "app/fleet_app/client.py").write_text(MOODY)
    _add(path / f"node-{GARBAGE}/node-config", ' mood="garbage"')
    _add(path / f"node-{HANGING}/node-config", f' mood="hang" sign="{path}/hanging"')
    try:
        made.superlink()
        made.call("./register.sh")
        yield made
    finally:
        made.shut_down()
        assert made.processes() == []


def _add(path: Path, text: str) -> None:
    path.write_text(path.read_text().rstrip() + text + "\n")


def test_a_run_survives_a_killed_and_a_lying_device(deployment: Deployment) -> None:
    deployment.connect(*range(4))
    id = deployment.run()
    deployment.wait_for((deployment.path / "hanging").exists, 400, "the second round")
    deployment.kill(deployment.nodes[HANGING][0])
    status = deployment.finish("run", 400)
    assert (status["state"], status["round"], status["rounds"], status["devices"]) == ("completed", 3, 3, 4)

    rounds = {entry["round"]: entry for entry in deployment.log("run") if entry["event"] == "round"}
    assert all(list(entry["rejected"]) == [str(GARBAGE)] for entry in rounds.values())
    assert "damaged" in rounds[1]["rejected"][str(GARBAGE)]
    assert rounds[1]["missing"] == []
    assert rounds[2]["missing"] == [HANGING]
    assert rounds[3]["asked"] != rounds[1]["asked"]
    assert HANGING not in rounds[3]["asked"]
    assert {(d["client"], d["width"]) for d in rounds[1]["devices"]} == {(0, "W2"), (HANGING, "W8"), (3, "FP32")}
    text = deployment.call("./flwr.sh", "log", id, "fleet", "--show")
    assert f"client {GARBAGE} is rejected: delta is damaged" in text
    assert f"round 2: client {HANGING} did not answer" in text

    evaluation = json.loads((deployment.server / "run/evaluation.json").read_text())
    assert set(evaluation["grid"]["table"]) == {"FP32", "W8", "W6", "W4", "W3", "W2"}
    own = ["--import", "anybit_test_models"]
    deployment.call("cp", "app/anybit_test_models.py", ".")
    assert "W2" in deployment.anybit("eval", "run", "--width", "W2", *own)
    assert "worst class" in deployment.anybit("fleet", "classes", "run", *own)
    assert deployment.anybit("fleet", "status", ".").startswith("completed, round 3 of 3, 4 devices")


def test_a_new_run_continues_after_the_superlink_went_down(deployment: Deployment) -> None:
    """The devices reconnect by themselves, the killed one is started again, and the run goes on from its checkpoint."""
    config = deployment.path / f"node-{HANGING}/node-config"
    config.write_text(config.read_text().partition(" mood")[0] + "\n")
    deployment.connect(*range(4))
    arguments = ["-c", 'run="second" overrides="rounds=3 fleet.quarantine=9"']
    deployment.run(*arguments)
    deployment.wait_for(lambda: any(e["event"] == "round" for e in deployment.log("second")), 400, "the first round")
    deployment.kill(deployment.link)
    assert deployment.status("second")["state"] == "unknown"
    deployment.superlink()
    deployment.run(*arguments)
    deployment.finish("second", 400)
    log = deployment.log("second")
    assert [entry["resumed"] for entry in log if entry["event"] == "run"] == [False, True]
    rounds = [entry for entry in log if entry["event"] == "round"]
    assert sorted({entry["round"] for entry in rounds}) == [1, 2, 3]
    assert sorted(rounds[-1]["asked"]) == [0, 1, 2, 3]


def test_strangers_are_refused(deployment: Deployment) -> None:
    """A device whose key is not registered, and one that trusts another authority, end without having connected."""
    for name in ("stranger", "elsewhere"):
        folder = deployment.path / f"node-{name}"
        folder.mkdir()
        for file in ("start.sh", "node-config", "ca.crt", "key"):
            (folder / file).write_bytes((deployment.path / "node-0" / file).read_bytes())
            (folder / file).chmod(0o700)
    (deployment.path / "node-stranger/key").write_bytes(device_key().private)
    (deployment.path / "node-elsewhere/ca.crt").write_bytes(server_certificate("localhost").authority)
    for name, word in (("stranger", "305"), ("elsewhere", "305")):
        process = deployment.node(name)
        assert process.wait(timeout=240) != 0
        text = (deployment.path / f"node-{name}/log").read_text()
        assert word in text, text
        assert "SuperNode ID" not in text
