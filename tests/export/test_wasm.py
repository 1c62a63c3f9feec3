"""The generated C in WebAssembly: in lanes and without, all bits are those of the C on this machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from anybit.errors import MissingProgram
from anybit.export.c import webassembly
from anybit.export.c.export import CExporter
from anybit.export.c.host import FLAGS as HOST
from anybit.export.c.host import run as run_on_host
from anybit.export.c.program import named
from anybit.export.subject import Subject
from anybit.quant.grid import GridName, Width
from anybit.quant.sites import SiteOptions
from tests.export.test_c import lenet, made, subject_of

PIXELS = Path(__file__).parents[2] / "src/anybit/export/page/pixels.js"


def three_ways(subject: Subject, width: str, folder: Path) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs on the test set (in lanes, without, on this machine)."""
    exporter, path = CExporter(subject), folder / f"model.{width.lower()}.c"
    program, _ = exporter.written(path, Width.parse(width))
    shape = program.output.shape[1:]
    lanes, plain = (webassembly.run(webassembly.compiled(path, simd), exporter.examples, shape) for simd in (True, False))
    return lanes, plain, run_on_host(path, named(path), exporter.examples, shape)[0]


@pytest.mark.browser
@pytest.mark.parametrize(("name", "grid", "widths"), [
    ("lenet", "full", "FP32 W3 WA8"), ("mobile", "centred", "W2 W2A8"), ("mobile", "narrow", "W5"),
    ("mlp", "centred", "W8 W6")])
def test_all_bits_are_the_hosts(name: str, grid: GridName, widths: str, tmp_path: Path) -> None:
    for width in widths.split():
        lanes, plain, here = three_ways(made(name, grid, per_channel=grid == "narrow"), width, tmp_path)
        assert torch.equal(plain, here), width
        assert torch.equal(lanes, here), width


@pytest.mark.browser
@pytest.mark.parametrize(("sites", "width"), [
    (SiteOptions(), "W4"), (SiteOptions(weight_grid="unsigned", activation_grid="unsigned"), "WA8")], ids=str)
def test_strides_and_dilations_and_rows_of_16_bits(sites: SiteOptions, width: str, tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        network = nn.Sequential(nn.Conv2d(1, 16, 3, stride=(2, 1), padding=2, dilation=2), nn.ReLU(),
                                nn.Conv2d(16, 32, (2, 3), stride=3, padding=1, groups=2), nn.ReLU(),
                                nn.Flatten(), nn.Linear(192, 10))
        subject = subject_of(network, sites)
    lanes, plain, here = three_ways(subject, width, tmp_path)
    assert torch.equal(plain, here)
    assert torch.equal(lanes, here)


@pytest.mark.browser
@pytest.mark.parametrize("flags", [("-mavxvnni",), ("-mavx512vnni", "-mavx512vl")], ids=str)
@pytest.mark.parametrize("grid", ["full", "unsigned"])
def test_vnni_is_compiled(grid: GridName, flags: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "model.c"
    CExporter(subject_of(lenet(), SiteOptions(activation_grid=grid))).written(path, Width.parse("W4A8"))
    shims = Path(webassembly.__file__).parent / "wasm"
    subprocess.run(["clang", "--target=x86_64-linux-gnu", "-mavx2", *flags, *HOST, f"-I{shims}", "-S", str(path), "-o",
                    str(tmp_path / "model.s")], check=True)
    assert "vpdpbusd" in (tmp_path / "model.s").read_text()


class Curves(nn.Module):
    """Everything that calls libm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.head = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x.flatten(1))
        x = nn.functional.gelu(x) + torch.tanh(3 * x) + nn.functional.elu(x) * torch.sigmoid(x)
        return torch.log_softmax(self.head(x), 1)


@pytest.mark.browser
def test_functions_of_libm(tmp_path: Path) -> None:
    lanes, plain, here = three_ways(subject_of(Curves()), "FP32", tmp_path)
    assert torch.equal(lanes, plain)
    torch.testing.assert_close(lanes, here, rtol=1e-6, atol=1e-6)
    assert not webassembly.module(CExporter(subject_of(Curves())), Width.parse("W4")).exact


def test_missing_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgram, match=r"clang, wasm-ld, node are not installed: apt-get install .* clang lld nodejs"):
        webassembly.check_programs()


def in_node(expression: str, given: object) -> object:
    """The value of an expression in which `pixels` is the page's module and `given` an object."""
    script = (f"const pixels = await import({json.dumps('data:text/javascript,')} + encodeURIComponent("
              f"{json.dumps(PIXELS.read_text())})); const given = {json.dumps(given)};"
              f"console.log(JSON.stringify({expression}))")
    return json.loads(subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True,
                                     check=True).stdout)


@pytest.mark.browser
def test_a_drawing_becomes_a_digit_of_the_data_set() -> None:
    line = [{"x": 5, "y": 1}, {"x": 5, "y": 9}]
    pixels = torch.tensor(list(dict.values(in_node("pixels.digit(given)", [line])))).reshape(8, 8)
    assert pixels[1:7, 3:5].eq(255).all(), "as high as the bitmap, in its middle"
    assert pixels[:, [0, 1, 6, 7]].eq(0).all()
    assert set(pixels.flatten().tolist()) <= {round(255 * n / 16) for n in range(17)}
    assert torch.equal(pixels, pixels.flip(0))
    far = [{"x": 100 + 40 * p["x"], "y": 40 * p["y"]} for p in line]
    assert in_node("pixels.digit(given)", [far]) == in_node("pixels.digit(given)", [line]), "place and size do not matter"
    assert in_node("pixels.digit(given)", []) is None


@pytest.mark.browser
def test_bytes_become_the_models_inputs_bit_by_bit() -> None:
    data = made("mlp", "full").data
    mean, std = data.pipeline.mean, data.pipeline.std
    given = {"images": data.test.images[:40].flatten(1).tolist(), "shape": [1, 8, 8], "mean": mean, "std": std}
    found = in_node("given.images.map(bytes => Array.from(pixels.normalized(bytes, given)))", given)
    assert torch.equal(torch.tensor(found).reshape(40, 1, 8, 8), data.pipeline(data.test.images[:40]))
