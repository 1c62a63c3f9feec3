"""The readers of archives in C and JavaScript: they compute what was evaluated from the file alone, and refuse all else."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.export.archive import write_archive
from anybit.export.reference import outputs, reference
from anybit.export.subject import Subject
from anybit.quant.grid import GridName, Width
from tests.export.archives import ALONE, EXAMPLES, NETWORKS, READERS, Archives, found, made, resealed

pytestmark = pytest.mark.artifacts


def close(result: Tensor, subject: Subject, width: str) -> bool:
    expected = outputs(reference(subject, Width.parse(width)), subject)[:EXAMPLES]
    near = (result - expected).abs().amax(1) <= 1e-5 * expected.abs().max()
    # Where activations are rounded, one that lies between two levels may fall to the other in the last bit.
    return float(near.float().mean()) >= (0.9 if "A" in width else 1) and torch.equal(result.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("grid", ["full", "centred"])
@pytest.mark.parametrize("name", NETWORKS)
def test_c_computes_the_evaluation(name: str, grid: GridName, reader: Path, archives: Archives) -> None:
    subject, paths = archives(name, grid)
    for width, path in paths.items():
        assert close(found([str(reader)], path, subject), subject, width), width


@pytest.mark.browser
@pytest.mark.parametrize("grid", ["full", "centred"])
@pytest.mark.parametrize("name", NETWORKS)
def test_javascript_computes_the_evaluation_and_every_bit_of_c(name: str, grid: GridName, reader: Path,
                                                               archives: Archives) -> None:
    subject, paths = archives(name, grid)
    for width, path in paths.items():
        result = found(["node", str(READERS / "read.mjs")], path, subject)
        assert close(result, subject, width), width
        assert torch.equal(result, found([str(reader)], path, subject)), width


class Everything(nn.Module):
    """The operations that the other networks lack, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.even = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 4, (2, 4), padding="same", groups=2)
        self.wide, self.line = nn.Conv2d(6, 5, 2, stride=3, dilation=3, padding=5), nn.Conv1d(6, 4, 5, 2, 2)
        self.rows = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        parts = [self.even(x), self.wide(x), self.line(x.flatten(2)), self.rows(x), F.leaky_relu(x, 0.1), F.silu(x),
                 torch.tanh(x) - 0.5 * x, torch.sigmoid(x) - x, -x / 4, x.clamp(min=-0.1), F.hardtanh(x, -0.2, 0.3),
                 F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
                 F.avg_pool2d(x, 3, 2, ceil_mode=True), F.max_pool2d(x, (2, 3), (2, 1), dilation=2),
                 F.adaptive_avg_pool2d(x, (2, 4)), x.mean(-1, keepdim=True), x.permute(0, 2, 3, 1), x.transpose(2, 3),
                 x[:, 1::2, 2:, -3:], F.pad(x, (1, 2, 0, 1, 1, 1), value=0.5), F.pad(x, (-1, 2)), x * x.mean((2, 3), True)]
        return torch.cat([part.flatten(1) for part in parts], 1)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Subject]:
    path, subject = tmp_path_factory.mktemp("everything") / "model.fp32.safetensors", made(Everything, "full")
    write_archive(path, subject, Width(32, 32))
    return path, subject


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("language", ["c", pytest.param("javascript", marks=pytest.mark.browser)])
def test_every_operation(language: str, everything: tuple[Path, Subject], reader: Path) -> None:
    path, subject = everything
    result = found([str(reader)] if language == "c" else ["node", str(READERS / "read.mjs")], path, subject)
    expected = outputs(reference(subject, Width(32, 32)), subject)[:EXAMPLES]
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def damaged(content: bytes) -> dict[str, bytes]:
    """Fifty files that end too early, and fifty with a flipped bit, in the header and behind it."""
    start, size = 8 + int.from_bytes(content[:8], "little"), len(content)
    places = [*range(0, start, start // 25), *range(start, size, (size - start) // 25)]
    flipped = {f"bit at {at}": content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1:] for at in places}
    return {**{f"cut at {at}": content[:at] for at in places}, **flipped}


def refusal(reader: Path, content: bytes, folder: Path) -> str:
    """The one line with which the reader in C refuses a file; empty if it takes it."""
    (folder / "m.safetensors").write_bytes(content)
    done = subprocess.run([str(reader), str(folder / "m.safetensors")], capture_output=True, text=True, check=False,
                          timeout=240, env=ALONE)
    assert (done.returncode, done.stderr) == (0, "") or \
        (done.returncode == 1 and re.fullmatch(r"refused: [^\n]*\n", done.stderr)), done.stderr
    return done.stderr


def test_c_refuses_damage(archive: Path, reader: Path, tmp_path: Path) -> None:
    content = archive.read_bytes()
    assert not refusal(reader, content, tmp_path)
    for what, other in damaged(content).items():
        assert refusal(reader, other, tmp_path), what


@pytest.mark.browser
def test_javascript_refuses_damage(archive: Path, tmp_path: Path) -> None:
    cases = damaged(archive.read_bytes())
    for i, content in enumerate(cases.values()):
        (tmp_path / str(i)).write_bytes(content)
    script = (f"const {{ readArchive }} = await import({json.dumps((READERS / 'read.mjs').as_uri())});"
              "const { readFileSync } = await import('node:fs'); const taken = [];"
              f"for (let i = 0; i < {len(cases)}; i++) "
              f"await readArchive(readFileSync({json.dumps(str(tmp_path))} + '/' + i))"
              ".then(() => taken.push(i), e => { if (!/^refused: .*$/.test(e.message)) taken.push(e.message); });"
              "console.log(JSON.stringify(taken))")
    done = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize(("old", "new", "why"), [
    ("anybit-archive-2", "anybit-archive-3", "the format 'anybit-archive-3', and this reader knows anybit-archive-2"),
    ('\\"op\\":\\"relu\\"', '\\"op\\":\\"cumsum\\"', "the operation 'cumsum', which this reader does not know"),
    ('\\"tolerance\\":', '\\"tolerance\\":-', "its test vector is missed by"),
    ('"graph":', '"no_graph":"of text","graph":', "it has weights and no graph: of text")])
def test_c_says_why(old: str, new: str, why: str, archive: Path, reader: Path, tmp_path: Path) -> None:
    assert why in refusal(reader, resealed(archive.read_bytes(), old, new), tmp_path)


def test_c_stays_within_its_memory_whatever_the_graph_says(archive: Path, reader: Path, tmp_path: Path) -> None:
    content = archive.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    numbers = sorted(set(re.findall(r'\\"\w+\\":\[?-?[\d.]+', content[8:start].decode())))
    assert len(numbers) > 30
    refused = [bool(refusal(reader, resealed(content, old, re.sub(r"-?[\d.]+$", new, old)), tmp_path))
               for old in numbers for new in ("0", "-1", "99999")]
    assert sum(refused) > len(refused) / 2
    offsets = re.findall(r'"data_offsets":\[\d+,\d+', content[8:start].decode())
    for old in offsets:
        assert refusal(reader, resealed(content, old, re.sub(r",\d+$", ",99999999", old)), tmp_path), old
