"""The readers of archives in C and JavaScript: they compute what was evaluated from the file alone, and refuse all else."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.export import exporting
from anybit.export.archive import write_archive
from anybit.export.c.host import FLAGS, compiler
from anybit.export.c.trace import traced
from anybit.export.reference import outputs, reference
from anybit.export.subject import Subject
from anybit.files.signatures import new_keys, private_key, write_signature
from anybit.models.resnet import ResNet
from anybit.quant.grid import GridName, Width
from anybit.quant.sites import SiteOptions
from tests.export.browser import browse
from tests.export.test_c import Mobile, lenet, subject_of

READERS = Path(exporting.__file__).parent / "readers"
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ALONE = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "NODE_NO_WARNINGS": "1"}
"""A reader keeps what it allocates until it ends; looking for leaks takes seconds."""
WIDTHS = ("W8", "W4", "W3", "W2", "W2A8")
EXAMPLES = 12


def resnet() -> nn.Module:
    """Two stages of a block: GroupNorm, a shortcut of every other pixel and new channels, a mean, one linear."""
    return ResNet(1, 10, (8, 16), 1, 2, "A", "torch")


def tiny() -> nn.Module:
    """A little of everything, for files that are damaged many times."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(2), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(4, 10))


NETWORKS = {"lenet": lenet, "resnet": resnet, "mobile": Mobile}


def made(network: Callable[[], nn.Module], grid: GridName) -> Subject:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return subject_of(network(), SiteOptions(weight_grid=grid, per_channel=network is Mobile))


Archives = Callable[[str, GridName], tuple[Subject, dict[str, Path]]]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """Give a network on a grid and its archives by width: traced once, for both readers."""
    @functools.cache
    def written(name: str, grid: GridName) -> tuple[Subject, dict[str, Path]]:
        subject, folder = made(NETWORKS[name], grid), tmp_path_factory.mktemp(name)
        trace = traced(subject)
        paths = {width: folder / f"model.{width}.safetensors" for width in WIDTHS}
        for width, path in paths.items():
            write_archive(path, subject, Width.parse(width), lambda: trace)
        return subject, paths

    return written


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader in C with all warnings as errors, and with the sanitizers of the compiler where it has them."""
    program = tmp_path_factory.mktemp("reader") / "read"
    command = [*compiler(), *FLAGS, str(READERS / "read.c"), "-lm", "-o", str(program)]
    if subprocess.run([*command, *SANITIZED], capture_output=True, check=False).returncode:
        subprocess.run(command, check=True)
    return program


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "model.w3a8.safetensors"
    write_archive(path, made(tiny, "centred"), Width(3, 8))
    return path


def found(command: list[str], path: Path, subject: Subject) -> Tensor:
    """What a reader gives for the first examples of the test set, from raw bytes."""
    images = subject.data.test.x
    assert isinstance(images, Tensor)
    (path.parent / "inputs").write_bytes(images[:EXAMPLES].numpy().tobytes())
    subprocess.run([*command, str(path), str(path.parent / "inputs"), str(path.parent / "outputs")], check=True,
                   capture_output=True, env=ALONE)
    return torch.from_numpy(np.fromfile(path.parent / "outputs", np.float32).reshape(EXAMPLES, -1))


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
                          timeout=60, env=ALONE)
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


def resealed(content: bytes, old: str, new: str) -> bytes:
    """A file with other text in its header and a digest that fits."""
    start = 8 + int.from_bytes(content[:8], "little")
    text = content[8:start].decode()
    text = text.replace(re.findall('"sha256":"(.{64})"', text)[0], "0" * 64, 1).replace(old, new, 1)
    head = len(text).to_bytes(8, "little") + text.encode()
    digest = hashlib.sha256(head + content[start:]).hexdigest()
    return head.replace(b"0" * 64, digest.encode(), 1) + content[start:]


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


PAGE = """<!doctype html><body><script type="module">
import { readArchive } from "./read.mjs";
const bytes = async (name) => new Uint8Array(await (await fetch(name)).arrayBuffer());
try {
  const model = await readArchive(await bytes("model"), { publicKey: await (await fetch("key.pub")).text(),
                                                          signature: await bytes("model.sig") });
  document.body.textContent = JSON.stringify(Array.from(model.runAll(await bytes("inputs"))));
} catch (error) { document.body.textContent = error.message; }
</script></body>"""


@pytest.mark.browser
def test_a_browser_reads_a_signed_archive(archives: Archives, reader: Path, tmp_path: Path) -> None:
    subject, paths = archives("resnet", "centred")
    shown = found([str(reader)], paths["W2A8"], subject)
    model = tmp_path / "model"
    model.write_bytes(paths["W2A8"].read_bytes())
    (tmp_path / "inputs").write_bytes((paths["W2A8"].parent / "inputs").read_bytes())
    (tmp_path / "read.mjs").write_bytes((READERS / "read.mjs").read_bytes())
    (tmp_path / "index.html").write_text(PAGE)
    new_keys(tmp_path / "key")
    write_signature(model, private_key(tmp_path / "key"))

    def says() -> str:
        with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(tmp_path))) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            dom = browse(f"http://127.0.0.1:{server.server_port}/index.html", tmp_path).stdout
            server.shutdown()
        return re.findall("(?s)<body>(.*)</body>", dom)[0].strip()

    assert torch.equal(torch.tensor(json.loads(says())), shown.flatten())
    model.write_bytes(model.read_bytes()[:-1] + b"0")
    assert says() == "refused: it is not signed with this key"


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.parametrize("language", ["c", pytest.param("javascript", marks=pytest.mark.browser)])
def test_a_signature_is_checked(language: str, archive: Path, reader: Path, tmp_path: Path) -> None:
    path, key, other = tmp_path / "m.safetensors", tmp_path / "key", tmp_path / "other"
    path.write_bytes(archive.read_bytes())
    for name in (key, other):
        new_keys(name)
    beside = write_signature(path, private_key(key))
    genuine = beside.read_bytes()
    command = [str(reader)] if language == "c" else ["node", str(READERS / "read.mjs")]

    def reads(public: str) -> tuple[int, str]:
        done = subprocess.run([*command, str(path), "--key", f"{tmp_path / public}.pub"], capture_output=True, text=True,
                              check=False, env=ALONE)
        return done.returncode, done.stderr

    refused = 1, "refused: it is not signed with this key\n"
    assert reads("key") == (0, "")
    assert reads("other") == refused
    for at in (0, 31, 32, 63):
        beside.write_bytes(genuine[:at] + bytes([genuine[at] ^ 1]) + genuine[at + 1:])
        assert reads("key") == refused, at
    beside.write_bytes(genuine)
    path.write_bytes(resealed(archive.read_bytes(), "W3A8", "W4A8"))
    assert reads("key") == refused


ORDER = 2**252 + 27742317777372353535851937790883648493
"""Of Ed25519's base point: a signature whose second half is not below it is none (RFC 8032), though the sums come out."""


def test_c_takes_one_signature_of_a_key_alone(archive: Path, reader: Path, tmp_path: Path) -> None:
    """What another library signed is taken; another encoding of it, another length or a neighbouring key is not."""
    path, public = tmp_path / "m.safetensors", tmp_path / "key.pub"
    content = archive.read_bytes()
    path.write_bytes(content)
    ed25519 = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    for seed in range(8):
        key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        raw, genuine = key.public_key().public_bytes_raw(), key.sign(content)
        twice = (int.from_bytes(genuine[32:], "little") + ORDER).to_bytes(32, "little")
        for which, (owner, signature) in enumerate([
                (raw, genuine), (raw, genuine[:32] + twice), (raw, genuine[:63]), (raw, genuine + b"0"), (raw, bytes(64)),
                (bytes([raw[0] ^ 1]) + raw[1:], genuine), (raw[:31] + bytes([raw[31] ^ 128]), genuine)]):
            public.write_text("-----BEGIN PUBLIC KEY-----\n" + base64.b64encode(SPKI + owner).decode()
                              + "\n-----END PUBLIC KEY-----\n")
            path.with_name("m.safetensors.sig").write_bytes(signature)
            done = subprocess.run([str(reader), str(path), "--key", str(public)], capture_output=True, check=False,
                                  env=ALONE)
            assert done.returncode == (0 if which == 0 else 1), (seed, which, done.stderr)


SPKI = bytes.fromhex("302a300506032b6570032100")
"""What comes before the 32 bytes of a public key of Ed25519 in its PEM file."""


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PUBLIC KEY-----",
                                     b"-----BEGIN PUBLIC KEY-----\n" + b"A" * 2000])
def test_c_refuses_what_is_no_key(content: bytes, archive: Path, reader: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_bytes(content)
    done = subprocess.run([str(reader), str(archive), "--key", str(tmp_path / "key.pub")], capture_output=True, text=True,
                          check=False, env=ALONE)
    assert (done.returncode, done.stderr) == (1, f"refused: {tmp_path}/key.pub is no public key of Ed25519 in PEM\n")


def test_c_says_that_a_key_is_not_there(archive: Path, reader: Path, tmp_path: Path) -> None:
    done = subprocess.run([str(reader), str(archive), "--key", str(tmp_path / "key.pub")], capture_output=True, text=True,
                          check=False, env=ALONE)
    assert (done.returncode, done.stderr) == (1, f"refused: {tmp_path}/key.pub cannot be opened\n")
