"""Archives of version 2: run from the file alone, with a test vector of nobody's data; other versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from anybit.errors import RunError
from anybit.export import interpreter
from anybit.export.archive import Network, read_archive, write_archive
from anybit.export.exporting import Exporter
from anybit.export.reference import reference
from anybit.export.report import write_report
from anybit.export.subject import Subject
from anybit.files.safetensors import load, save
from anybit.quant.grid import Width
from tests.export.archives import made, resnet
from tests.export.test_c import Sums, lenet, subject_of

pytestmark = pytest.mark.artifacts


@pytest.fixture(scope="module")
def network() -> Subject:
    return made(resnet, "centred")


def test_the_file_says_what_goes_in_and_comes_out(network: Subject, tmp_path: Path) -> None:
    write_archive(tmp_path / "m", network, Width(2, 8))
    _, facts = read_archive(tmp_path / "m")
    pipeline = network.data.pipeline
    assert facts["input"] == {"type": "U8", "shape": [1, 8, 8], "mean": list(pipeline.mean or ()),
                              "std": list(pipeline.std or ())}
    assert facts["output"] == {"shape": [10], "classes": list(network.data.class_names)}
    assert [node["op"] for node in facts["graph"]][:4] == ["quantize", "conv", "group_norm", "relu"]
    assert {node["site"] for node in facts["graph"] if node["op"] == "quantize"} == set(facts["activations"])
    assert all(entry["offset"] == 0 for entry in facts["activations"].values())
    packed = json.loads(load(tmp_path / "m")[1]["packed"])
    assert {(entry["low"], entry["offset"]) for entry in packed.values()} == {(-1.5, 0.5)}


def test_its_test_vector_is_the_evaluations_and_nobodys_data(network: Subject, tmp_path: Path) -> None:
    write_archive(tmp_path / "m", network, Width(4, 32))
    found = Network(tmp_path / "m")
    test = found.facts["test"]
    with torch.no_grad():
        expected = reference(network, Width(4, 32))(network.data.pipeline(test["inputs"]))
    for other in (test["outputs"], found.raw(test["inputs"])):
        torch.testing.assert_close(other, expected, rtol=0, atol=test["tolerance"])
    assert test["tolerance"] < 1e-3 * float(test["outputs"].abs().max())
    images = torch.cat([network.data.train.x, network.data.test.x])  # type: ignore[list-item]
    assert not any(bool((images == one).flatten(1).all(1).any()) for one in test["inputs"])
    write_archive(tmp_path / "again", network, Width(4, 32))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()


def test_a_wrong_graph_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Exporter(subject_of(lenet()), tmp_path)
    assert not exporter.export(Width(4, 32), "archive").rejected
    monkeypatch.setitem(interpreter._FUNCTIONS, "relu", lambda node, own, x: -x)
    assert exporter.export(Width(4, 32), "archive").rejected


def test_a_network_without_a_graph_says_why(tmp_path: Path) -> None:
    subject = subject_of(nn.Sequential(nn.Flatten(), Sums(), nn.Linear(64, 10)))
    exporter = Exporter(subject, tmp_path)
    artifact = exporter.export(Width(4, 32), "archive")
    why = "layer '1': the graph of an archive has no operation 'cumsum'"
    assert not artifact.rejected
    assert artifact.known_wrong == [f"it has weights and no graph, so that no reader runs it: {why}"]
    write_report(exporter, {("W4", "archive"): artifact}, None, {})
    assert why in (tmp_path / "README.md").read_text()
    with pytest.raises(RunError, match="has weights and no graph: layer '1'"):
        Network(tmp_path / artifact.file)


def test_versions(tmp_path: Path) -> None:
    tensors = {"w": torch.tensor([0b11100100], dtype=torch.uint8), "w.step": torch.tensor(0.5)}
    facts = {"packed": json.dumps({"w": {"bits": 2, "low": -2, "shape": [4]}}), "activations": "{}", "width": "W2"}
    save(tmp_path / "one", tensors, {"format": "anybit-archive-1", **facts})
    assert read_archive(tmp_path / "one")[0]["w"].tolist() == [-1.0, -0.5, 0.0, 0.5]
    with pytest.raises(RunError, match="no graph: it is of version 1"):
        Network(tmp_path / "one")
    save(tmp_path / "three", tensors, {"format": "anybit-archive-3", **facts})
    with pytest.raises(RunError, match=r"its format is 'anybit-archive-3', not 'anybit-archive-1' or 'anybit-archive-2'$"):
        read_archive(tmp_path / "three")


@pytest.mark.parametrize("change", [{"op": "cumsum"}, {"in": [99]}, {"in": [-1]}, {"shape": [3, 3]}, {"shape": [1 << 30]},
                                    {"weight": "none"}])
def test_a_damaged_graph_is_one_line(change: dict[str, object], tmp_path: Path) -> None:
    write_archive(tmp_path / "m", subject_of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), Width(4, 32))
    tensors, metadata = load(tmp_path / "m")
    graph = json.loads(metadata["graph"])
    graph[-1].update(change)
    save(tmp_path / "m", tensors, {**metadata, "graph": json.dumps(graph)})
    with pytest.raises(RunError, match="has a damaged graph"):
        Network(tmp_path / "m")(torch.zeros(2, 1, 8, 8))
