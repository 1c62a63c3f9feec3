"""Signatures of archives: the readers in C and JavaScript take none but the one of the key they are given."""

from __future__ import annotations

import base64
import functools
import importlib
import json
import re
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from anybit.files.signatures import new_keys, private_key, write_signature
from tests.export.archives import ALONE, READERS, Archives, found, resealed
from tests.export.browser import browse

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
