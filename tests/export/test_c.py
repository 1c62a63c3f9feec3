"""C artifacts: what the host's compiler makes of them computes what was evaluated, at every width and on every grid."""

from __future__ import annotations

import json
import platform
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.errors import ConfigError, MissingProgram, ModelError
from anybit.export.c import operations
from anybit.export.c.arena import plan
from anybit.export.c.export import CExporter
from anybit.export.c.host import run as run_on_host
from anybit.export.c.program import INPUT, Step, Value
from anybit.export.exporting import Exporter, Options
from anybit.export.reference import outputs, reference
from anybit.export.report import write_report
from anybit.export.subject import Subject
from anybit.models import resnet20
from anybit.quant.grid import GridName, Width
from anybit.quant.ranges import StepTable
from anybit.quant.sites import SiteOptions
from tests.export.command import TRUSTED, run
from tests.export.test_onnx import untrained

pytestmark = pytest.mark.artifacts


def lenet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 12, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(48, 20), nn.ReLU(), nn.Linear(20, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 10))


class Mobile(nn.Module):
    """Inverted residual with squeeze and excitation, BatchNorm, hardswish; 1×8×8 → 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm1 = nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.grow, self.norm2 = nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.depthwise, self.norm3 = nn.Conv2d(16, 16, 5, 1, 2, groups=16, bias=False), nn.BatchNorm2d(16)
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.shrink, self.norm4 = nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)
        for norm in (self.norm1, self.norm2, self.norm3, self.norm4):
            norm.running_mean, norm.running_var = torch.rand_like(norm.bias) - 0.5, torch.rand_like(norm.bias) + 0.5

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.norm1(self.stem(x)), inplace=True)
        y = F.hardswish(self.norm3(self.depthwise(F.relu6(self.norm2(self.grow(x))))))
        y = y * F.hardsigmoid(self.excite(torch.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        x = x + self.norm4(self.shrink(y))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


NETWORKS = {"lenet": lenet, "resnet20": lambda: resnet20(1), "mobile": Mobile, "mlp": mlp}
GRIDS: tuple[GridName, ...] = ("full", "narrow", "centred")


def subject_of(network: nn.Module, sites: SiteOptions = SiteOptions()) -> Subject:
    return untrained(sites, network.eval())


def made(name: str, grid: GridName, per_channel: bool = False) -> Subject:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return subject_of(NETWORKS[name](), SiteOptions(weight_grid=grid, per_channel=per_channel))


def found(subject: Subject, width: str, folder: Path) -> Tensor:
    """The outputs of the compiled artifact on the test set."""
    exporter, path = CExporter(subject, verify=False), folder / f"model.{width.lower()}.c"
    exporter.export(path, Width.parse(width))
    expected = outputs(reference(subject, Width.parse(width)), subject)
    return run_on_host(path, path.stem.replace(".", "_"), exporter.examples, tuple(expected.shape[1:]))[0]


@pytest.mark.parametrize(("name", "grid", "widths"), [
    ("lenet", "full", "W8 W3 WA8"), ("lenet", "narrow", "W4 W4A8"), ("lenet", "centred", "W2 W2A8 WA4"),
    ("resnet20", "full", "W4A8"), ("resnet20", "centred", "W2"),
    ("mobile", "full", "W2 W2A8"), ("mobile", "narrow", "W3 W6"), ("mobile", "centred", "W4A8 W5"),
    ("mlp", "full", "W4"), ("mlp", "narrow", "W2A8 W7"), ("mlp", "centred", "W3 W4A8")])
def test_the_artifact_is_the_evaluation(name: str, grid: GridName, widths: str, tmp_path: Path) -> None:
    subject = made(name, grid, per_channel=grid == "narrow")
    for width in widths.split():
        expected, result = outputs(reference(subject, Width.parse(width)), subject), found(subject, width, tmp_path)
        close = ((result - expected).abs().amax(1) <= 1e-5 * expected.abs().max())
        # Where activations are rounded, one that lies between two levels may fall to the other in the last bit.
        assert float(close.float().mean()) >= (0.97 if "A" in width else 1), width
        assert torch.equal(result.argmax(1), expected.argmax(1)), width


@pytest.mark.parametrize("sites", [
    SiteOptions(), SiteOptions(weight_grid="centred", activation_grid="centred", per_channel=True),
    SiteOptions(weight_grid="unsigned", activation_grid="auto", one_sided=("0", "3", "6", "8"))], ids=str)
@pytest.mark.parametrize("width", ["W8A8", "W2A8", "WA4", "W3A5"])
def test_integers_are_exact(sites: SiteOptions, width: str, tmp_path: Path) -> None:
    """With step sizes that are powers of two float32 has no rounding of its own, and every bit is the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        subject = subject_of(lenet(), sites)
    for name, parameter in subject.model.named_parameters():
        if name.endswith("bias"):
            parameter.data = torch.round(parameter.data * 2**8) / 2**8
    steps = {site: torch.exp2(torch.log2(step).ceil()) for site, step in subject.table.steps.items()}
    subject = replace(subject, table=StepTable(steps))
    assert torch.equal(found(subject, width, tmp_path), outputs(reference(subject, Width.parse(width)), subject))


PLAIN = {"aarch64": "-U__ARM_NEON"}
"""{machine: what keeps a compiler from instructions that every processor of it has}."""
LANES = {"aarch64": {"asimd": "", "asimddp": "-march=armv8.2-a+dotprod"},
         "x86_64": {"avx2": "-mavx2", "avx512_vnni": "-mavx2 -mavx512vl -mavx512vnni"}}
"""{machine: {flag of a processor: flags of a compiler}}."""


@pytest.mark.parametrize(("name", "activation_grid", "width"), [
    ("lenet", "full", "W8A8"), ("lenet", "unsigned", "W4A8"), ("mobile", "full", "W4A8"), ("resnet20", "unsigned", "W2A8")])
def test_instructions_for_many_products_give_the_same(name: str, activation_grid: GridName, width: str, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    features = set(Path("/proc/cpuinfo").read_text().split())
    builds = [flags for has, flags in LANES.get(platform.machine(), {}).items() if has in features]
    if not builds:
        pytest.skip("needs a processor with asimd or avx2")
    subject = subject_of(NETWORKS[name](), SiteOptions(weight_grid="centred", activation_grid=activation_grid))
    monkeypatch.setenv("CC", f"cc {PLAIN.get(platform.machine(), '')}")
    plain = found(subject, width, tmp_path)
    for flags in builds:
        monkeypatch.setenv("CC", f"cc {flags}")
        assert torch.equal(found(subject, width, tmp_path), plain), flags


class Applied(nn.Module):
    """A convolution to 6×8×8 and a function of its result."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(1, 6, 3, padding=1), function
        self.register_buffer("extra", torch.linspace(-1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv(x), self).flatten(1)  # type: ignore[operator,no-any-return]


FUNCTIONS = {
    "activations": lambda x, m: torch.cat([F.leaky_relu(x, 0.1), F.elu(x), F.silu(x), F.gelu(x), torch.tanh(x),
                                           torch.sigmoid(x), F.hardtanh(x, -0.2, 0.3), x.clamp(min=-0.1), abs(x)], 1),
    "arithmetic": lambda x, m: (x + 1) * 2 - x / 4 + m.extra.reshape(6, 1, 1) * x - 0.5 * x,
    "pools": lambda x, m: torch.cat([
        F.max_pool2d(x, 3, 2, 1).flatten(1), F.avg_pool2d(x, 3, 2, 1).flatten(1),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False).flatten(1),
        F.avg_pool2d(x, 3, 2, ceil_mode=True).flatten(1), F.max_pool2d(x, (2, 3), (2, 1), dilation=2).flatten(1),
        F.adaptive_avg_pool2d(x, (3, 5)).flatten(1), x.mean((2, 3)), x.mean(-1, keepdim=True).flatten(1)], 1),
    "pools of one dimension": lambda x, m: torch.cat([
        F.max_pool1d(x.flatten(2), 3, 2, 1, 2).flatten(1), F.max_pool1d(x.flatten(2), 5, ceil_mode=True).flatten(1),
        F.avg_pool1d(x.flatten(2), 3, 2, 1).flatten(1), F.adaptive_avg_pool1d(x.flatten(2), 5).flatten(1),
        F.avg_pool1d(x.flatten(2), 3, 2, 1, ceil_mode=True, count_include_pad=False).flatten(1)], 1),
    "moves": lambda x, m: torch.cat([
        x.permute(0, 2, 3, 1).flatten(1), x.transpose(2, 3).flatten(1), x[:, 1::2, 2:, -3:].flatten(1), x[:, 2].flatten(1),
        F.pad(x, (1, 2, 0, 1, 1, 1), value=0.5).flatten(1), F.pad(x, (-1, 2)).flatten(1), x.chunk(2, 1)[1].flatten(1),
        x.split([1, 5], 1)[1].flatten(1), x[:, :1].expand(-1, 3, -1, -1).flatten(1),
        x.unsqueeze(2).squeeze(2).flatten(1)], 1),
    "softmax": lambda x, m: torch.cat([x.softmax(1), x.softmax(-1), x.log_softmax(2)], 1),
    "view": lambda x, m: x.view(x.size(0), -1, 4).contiguous().reshape(len(x), 2, -1)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations(name: str, tmp_path: Path) -> None:
    subject = subject_of(Applied(FUNCTIONS[name]))
    with torch.no_grad():
        expected = torch.cat([subject.model(x) for x in subject.test_batches(64)])
    torch.testing.assert_close(found(subject, "FP32", tmp_path), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("width", ["FP32", "W8A8"])
@pytest.mark.parametrize("layer", [
    nn.Conv2d(6, 4, 3, stride=2, padding=(2, 1), dilation=(1, 2)), nn.Conv2d(6, 9, (2, 4), groups=3, padding="same"),
    nn.Conv2d(6, 12, 3, groups=6, stride=(1, 2)), nn.Conv2d(6, 5, 2, stride=3, dilation=3, padding=5), nn.GroupNorm(3, 6)],
    ids=lambda layer: type(layer).__name__)
def test_layers(layer: nn.Module, width: str, tmp_path: Path) -> None:
    subject = subject_of(nn.Sequential(nn.Conv2d(1, 6, 3), layer, nn.Flatten()))
    expected, result = outputs(reference(subject, Width.parse(width)), subject), found(subject, width, tmp_path)
    close = (result - expected).abs().amax(1) <= 1e-5 * expected.abs().max()
    assert float(close.float().mean()) >= (0.97 if "A" in width else 1)


def test_a_line(tmp_path: Path) -> None:
    """Convolutions of one dimension, and linear layers on sequences."""
    subject = subject_of(nn.Sequential(nn.Flatten(2), nn.Conv1d(1, 4, 5, 2, 2), nn.ReLU(), nn.Linear(32, 5), nn.Flatten()))
    for width in ("W4", "WA8"):
        expected = outputs(reference(subject, Width.parse(width)), subject)
        close = (found(subject, width, tmp_path) - expected).abs().amax(1) <= 1e-5 * expected.abs().max()
        assert float(close.float().mean()) >= 0.97, width


def test_the_arena_by_hand() -> None:
    """Two tensors of 4 and one of 2 floats: the second is made in place, the third fits beside; scratch of 5 bytes."""
    first, second, third, last = (Value(name, (1, n)) for name, n in (("a", 4), ("b", 4), ("c", 2), ("d", 1)))
    steps = [Step("", (Value(INPUT, (1, 4)),), first), Step("", (first,), second, in_place=True),
             Step("", (second,), third, scratch=5), Step("", (third,), last)]
    arena = plan(steps, last)
    assert (arena.size, dict(arena.places)) == (8, {"a": 0, "c": 4, "scratch 2": 6})
    assert [arena.pointer(v) for v in (Value(INPUT, (1, 4)), first, second, third, last)] == \
        ["input", "arena + 0", "arena + 0", "arena + 4", "output"]


def test_memory_is_what_the_files_say(tmp_path: Path) -> None:
    artifact = CExporter(made("lenet", "full")).export(tmp_path / "model.w4.c", Width(4, 32))
    assert artifact.footprint is not None
    # 6·8·8 floats, the pooled 6·4·4 of them, and a row of 54 weights, in fours; rows of 9, 54, 48 and 20 weights in whole
    # bytes, 48 biases, 4 scales
    assert (artifact.footprint.arena, artifact.footprint.ram) == (4 * (384 + 96), 4 * (384 + 96) + 56)
    assert artifact.footprint.weights == 6 * 5 + 12 * 27 + 20 * 24 + 10 * 10 + 4 * (48 + 4)
    assert artifact.footprint.macs == {"0": 54 * 64, "3": 648 * 4, "6": 960, "8": 200}
    assert artifact.footprint.flash is not None
    assert artifact.footprint.flash > artifact.footprint.weights
    header = (tmp_path / "model.w4.h").read_text()
    assert re.search(r"#define ANYBIT_MODEL_W4_INPUT_SHAPE \{1, 8, 8\}", header)
    assert f"#define ANYBIT_MODEL_W4_RAM_BYTES {artifact.footprint.ram}" in header
    assert "malloc" not in (tmp_path / "model.w4.c").read_text()
    assert "-lm" not in header, "nothing of libm without norms"


def test_what_every_layer_costs(tmp_path: Path) -> None:
    """Flash, arena and work of each by hand; the largest arena of a layer is the whole one; times are of this machine."""
    exporter = Exporter(made("lenet", "full"), tmp_path)
    artifact = exporter.export(Width(4, 32), "c")
    assert artifact.footprint is not None
    layers = artifact.footprint.layers
    assert [(c.name, c.weights, c.macs) for c in layers if c.macs] == [
        ("0", 6 * 5, 54 * 64), ("3", 12 * 27, 648 * 4), ("6", 20 * 24, 960), ("8", 10 * 10, 200)]
    assert [c.name for c in layers] == list("01234678"), "a reshape costs nothing"
    assert [c.ram for c in layers[:4]] == [4 * 384, 4 * 384, 4 * (384 + 96), 4 * (96 + 48)]
    assert max(c.ram for c in layers) == artifact.footprint.arena
    assert sum(c.microseconds or 0 for c in layers) > 0
    report = write_report(exporter, {("W4", "c"): artifact}, None, {})
    assert report["artifacts"][0]["footprint"]["layers"][1]["name"] == "1"
    card = (tmp_path / "README.md").read_text()
    assert "## Layers of `model.w4.c`" in card
    assert re.search(r"^\| 3 \| 324 \| 576 \| 2,592 \| [\d.]+ \| \d+% \|$", card, re.MULTILINE)
    assert re.search(r"^\| all others \| 0 \|", card, re.MULTILINE)


class Sums(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


def test_an_unknown_operation_is_one_line(tmp_path: Path) -> None:
    subject = subject_of(nn.Sequential(nn.Flatten(), Sums(), nn.Linear(64, 10)))
    with pytest.raises(ModelError, match=r"layer '1': the C export has no operation 'cumsum'; it has .*, or runtime='onnx'"):
        Exporter(subject, tmp_path).export(Width(4, 32), "c")
    assert not list(tmp_path.iterdir())


def test_a_wrong_artifact_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = made("mlp", "full")
    monkeypatch.setitem(operations.UNARY, "relu", "-v")
    artifact = Exporter(subject, tmp_path).export(Width(4, 32), "c")
    assert artifact.rejected
    assert {p.name for p in tmp_path.iterdir()} == {"model.w4.c.rejected", "model.w4.h.rejected"}


def test_without_onnx(run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose options export.json records where there are ONNX artifacts alone."""
    for package in ("onnx", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    run(["export", str(run_path), "--width", "W4", "--runtime", "c", "--out", str(tmp_path), "--import", TRUSTED[0]])
    assert {p.name for p in tmp_path.iterdir()} == {"model.w4.c", "model.w4.h", "export.json", "README.md"}
    assert "signed" not in json.loads((tmp_path / "export.json").read_text())["options"]


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    subject = made("mlp", "full")
    with pytest.raises(MissingProgram, match=r"a C compiler \(cc, gcc, clang\): apt-get.*; runtime='onnx' needs none"):
        Exporter(subject, tmp_path).export(Width(4, 32), "c")
    assert not list(tmp_path.iterdir()), "nothing that nobody ran"
    exporter = Exporter(subject, tmp_path, Options(verify=False))
    artifact = exporter.export(Width(4, 32), "c")
    report = write_report(exporter, {("W4", "c"): artifact}, None, {})
    assert not artifact.verified
    assert "artifact" not in json.loads(json.dumps(report, allow_nan=False))["artifacts"][0]["verdict"]
    assert "`model.w4.c` was **not verified**" in (tmp_path / "README.md").read_text()


def test_the_command(run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["export", str(run_path), "--runtime", "c", "--width", "W4", "--width", "W2A8", "--out", str(out), "--import",
                "tests.export.user_net"]) == 0
    report = json.loads((out / "export.json").read_text())
    assert {"model.w4.c", "model.w4.h", "model.w2a8.c", "model.w2a8.h", "README.md"} == set(report["sha256"])
    assert [a["kernels"] for a in report["artifacts"]] == [{}, {"integer": 4}]
    assert all(a["verdict"]["agreement"] >= 0.99 for a in report["artifacts"])
    assert "multiply-accumulates" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--no-verify: for --runtime c alone"):
        run(["export", str(run_path), "--no-verify", "--width", "W4", "--import", "tests.export.user_net"])
