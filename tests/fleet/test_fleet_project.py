"""`anybit fleet`: the project it writes, the truth it tells, the classes it compares."""

from __future__ import annotations

import json
import ssl
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from anybit.config import from_recipe
from anybit.errors import ConfigError, RunError
from anybit.fleet.project import Project, write_project
from anybit.fleet.server_app import serve
from anybit.fleet.status import fleet_status
from anybit.training.run_folder import RunFolder
from tests.e2e.conftest import Anybit, environment
from tests.e2e.warm import Warm
from tests.fleet.conftest import LocalGrid, nodes, small


@pytest.fixture(scope="module")
def anybit() -> Iterator[Anybit]:
    """Run the command in the folder `cwd` and wait for it."""
    warm = Warm(environment())
    yield lambda *arguments, cwd: warm.run(arguments, cwd, environment())
    warm.close()


def test_init_writes_a_project_that_is_ready(tmp_path: Path, anybit: Anybit) -> None:
    done = anybit("fleet", "init", "trial", "quickstart/mqat", "rounds=7", "--devices", "2,W4A8,any", "--host",
                  "fleet.example", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    project, server = tmp_path / "trial", tmp_path / "trial/server"
    assert [(project / f"node-{i}/node-config").read_text().strip() for i in range(3)] == [
        "partition-id=0 bits=2", 'partition-id=1 width="W4A8"', "partition-id=2"]
    app = tomllib.loads((server / "app/pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"] == {"serverapp": "fleet_app.server:app", "clientapp": "fleet_app.client:app"}
    assert app["config"] == {"run": "run", "overrides": "", "devices": "devices.toml", "imports": ""}
    config = from_recipe(str(server / "app/fleet_app/recipe.toml"))
    assert (config.rounds, config.checkpoint_every, config.model.name) == (7, 1, "resnet20")
    for script in (server / "start.sh", server / "register.sh", server / "flwr.sh", project / "node-0/start.sh"):
        assert script.stat().st_mode & stat.S_IXUSR
        assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    for quiet in (server / "env.sh", project / "node-0/start.sh"):
        for word in ("FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1", "DEPENDENCY_INSTALLATION=1"):
            assert word in quiet.read_text()
    for secret in (server / "certificates/server.key", project / "node-0/key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(project.stat().st_mode) == 0o700


def test_secrets_stay_out_of_what_flower_sends(tmp_path: Path) -> None:
    write_project(tmp_path / "p", Project("quickstart/mqat", [], ["4", "4"]))
    for file in (tmp_path / "p/server/app").rglob("*"):
        assert file.is_dir() or b"PRIVATE KEY" not in file.read_bytes()
    assert not list((tmp_path / "p").rglob("ca.key"))
    keys = {(tmp_path / f"p/node-{i}/key").read_bytes() for i in range(2)}
    assert len(keys) == 2


def test_the_certificate_is_for_the_host_and_signed_by_its_authority(tmp_path: Path) -> None:
    write_project(tmp_path / "p", Project("quickstart/mqat", [], ["4"], host="10.1.2.3"))
    certificates = tmp_path / "p/server/certificates"
    context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    assert len(context.get_ca_certs()) == 1
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    assert _handshake(context, server, "10.1.2.3")
    assert _handshake(context, server, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(context, server, "other.example")
    write_project(tmp_path / "q", Project("quickstart/mqat", [], ["4"], host="10.1.2.3"))
    other = ssl.create_default_context(cafile=str(tmp_path / "q/server/certificates/ca.crt"))
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(other, server, "10.1.2.3")


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> bool:
    """TLS without a network: bytes carried between two engines."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname=host)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (here, there, here, there):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return here.version() is not None


def test_mistakes_are_one_line(tmp_path: Path, anybit: Anybit) -> None:
    for arguments, message in ((["quickstart/mqta"], "did you mean"), (["quickstart/mqat", "--devices", "9"], "bits = 9"),
                               (["quickstart/mqat", "--host", "a b"], "host = 'a b'"),
                               (["quickstart/mqat", "--devices", ","], "at least one device"),
                               (["quickstart/mqat", "fleet.deadlin=3"], "did you mean 'deadline'"),
                               (["quickstart/mqat", "fleet.uplink_bits=5"], "must be 4, 8 or 32")):
        done = anybit("fleet", "init", "x", *arguments, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    with pytest.raises(ConfigError):
        Project("quickstart/mqat", [], ["W"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(RunError, match="not empty"):
        write_project(tmp_path / "full", Project("quickstart/mqat", [], ["4"]))


def _server(path: Path, flower: str) -> Path:
    """A server folder whose Flower says this."""
    path.mkdir()
    (path / "flwr.sh").write_text(f"#!/bin/sh\n{flower}\n")
    (path / "flwr.sh").chmod(0o755)
    return path


def _said(status: str) -> str:
    return f"echo '{json.dumps({'success': True, 'runs': [{'status': status, 'status-details': 'details'}]})}'"


@pytest.mark.usefixtures("own_models")
def test_status_tells_the_truth(tmp_path: Path, anybit: Anybit) -> None:
    server = _server(tmp_path / "server", _said("finished:completed"))
    assert fleet_status(server).state == "waiting"
    serve(LocalGrid(nodes(4)), small("rounds=2"), server / "run", ["anybit_test_models"], run_id=5)
    done = fleet_status(server)
    assert (done.state, done.round, done.rounds, done.devices, done.last["answered"]) == ("completed", 2, 2, 4, 4)
    assert anybit("fleet", "status", str(server), cwd=tmp_path).stdout.startswith("completed, round 2 of 2, 4 devices\n")

    (server / "run/evaluation.json").unlink()
    lost = fleet_status(server)
    assert lost.state == "failed"  # whatever Flower says: the run has no result
    assert "Flower ended the run (details)" in lost.reason
    assert anybit("fleet", "status", str(server), cwd=tmp_path).returncode == 1

    for word, state in (("running", "running"), ("pending", "running")):
        (server / "flwr.sh").write_text(f"#!/bin/sh\n{_said(word)}\n")
        assert fleet_status(server).state == state
    (server / "flwr.sh").write_text("""#!/bin/sh\necho '{"success": false, "error-message": "no connection"}'\n""")
    gone = fleet_status(server)
    assert gone.state == "unknown"
    assert "no connection" in gone.reason
    with RunFolder.open(server / "run").locked():
        assert fleet_status(server).state == "running"
    RunFolder.open(server / "run").append("fleet", {"event": "failed", "id": "5", "reason": "no devices"})
    assert (fleet_status(server).state, fleet_status(server).reason) == ("failed", "no devices")


def test_status_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not the server folder of a fleet"):
        fleet_status(tmp_path)


@pytest.mark.usefixtures("own_models")
def test_classes_of_a_fleet_and_of_a_run_on_one_process(tmp_path: Path, anybit: Anybit) -> None:
    grid = LocalGrid({client: {"bits": bits} for client, bits in enumerate((2, 2, 8, 32))})
    serve(grid, small("rounds=2"), tmp_path / "run", ["anybit_test_models"])
    own = ["--import", "anybit_test_models"]
    (tmp_path / "anybit_test_models.py").touch()
    found = json.loads(anybit("fleet", "classes", "run", "--json", *own, cwd=tmp_path).stdout)
    assert [(c["width"], c["devices"]) for c in found["classes"]] == [("W2", 2), ("W8", 1), ("FP32", 1)]
    metrics = {c["width"]: c["metric"] for c in found["classes"]}
    assert metrics["W8"] == pytest.approx(
        RunFolder.open(tmp_path / "run").evaluation()["grid"]["table"]["W8"]["metric"])
    assert found["worst"] == min(metrics, key=lambda width: metrics[width])
    assert found["spread"] == pytest.approx(max(metrics.values()) - min(metrics.values()))
    assert all(0 <= c["on_devices"] <= 100 for c in found["classes"])

    tiny = ["model.name=anybit_test_models:tiny", "rounds=1", "evaluation.sites=[\"W\"]"]
    done = anybit("run", "quickstart/mqat", "variant.fixed=true", *tiny, "--path", "fixed", *own, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = anybit("fleet", "classes", "fixed", *own, cwd=tmp_path).stdout
    assert "worst class" in text
    assert "W2" in text
    anybit("run", "quickstart/mqat", *tiny, "--path", "drawn", *own, cwd=tmp_path)
    drawn = anybit("fleet", "classes", "drawn", *own, cwd=tmp_path)
    assert drawn.returncode == 2
    assert "no width of their own" in drawn.stderr
