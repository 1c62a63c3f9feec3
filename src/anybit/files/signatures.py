"""Signatures: Ed25519 over the bytes of one file, kept beside it as FILE.sig (64 bytes).

A checksum finds damage; whoever can write a folder can write its checksums. A signature says whose file it is. Keys are PEM
files as openssl reads them: the private one PKCS #8, for its owner's eyes alone, the public one SubjectPublicKeyInfo.
"""

from __future__ import annotations

import importlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anybit.errors import ConfigError, MissingExtra
from anybit.files.reading import read_bytes
from anybit.files.writing import write_bytes, writing

SUFFIX = ".sig"
_KEY_LIMIT = 1 << 14


def _crypto(module: str) -> Any:
    try:
        return importlib.import_module(f"cryptography.hazmat.primitives.{module}")
    except ImportError:
        raise MissingExtra("cryptography", "sign", "a signature") from None


def new_keys(path: Path) -> Path:
    """Write a new private key to `path` and its public one beside it, PATH.pub, which is returned."""
    key, pem = _crypto("asymmetric.ed25519").Ed25519PrivateKey.generate(), _crypto("serialization")
    public = path.with_name(f"{path.name}.pub")
    for file in (path, public):
        if file.exists() or file.is_symlink():
            raise ConfigError(f"{file} is there already: choose another name, so that no key is lost")
    with writing(path, "choose another place"):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as private:
            private.write(key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()))
        write_bytes(public, key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo))
    return public


def private_key(path: Path) -> Any:
    """Read a private key that nobody else can read."""
    content, pem = read_bytes(path, _KEY_LIMIT), _crypto("serialization")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError(f"{path} can be read by others: chmod 600 {path}")
    return _key(path, lambda: pem.load_pem_private_key(content, None), "Ed25519PrivateKey")


def public_key(path: Path) -> Any:
    """Read a public key."""
    content, pem = read_bytes(path, _KEY_LIMIT), _crypto("serialization")
    return _key(path, lambda: pem.load_pem_public_key(content), "Ed25519PublicKey")


def _key(path: Path, load: Callable[[], Any], kind: str) -> Any:
    try:
        key = load()
    except (ValueError, TypeError, importlib.import_module("cryptography.exceptions").UnsupportedAlgorithm):
        key = None
    if not isinstance(key, getattr(_crypto("asymmetric.ed25519"), kind)):
        raise ConfigError(f"{path} is no {kind} in PEM, without a password: 'anybit keys new FILE' writes FILE and FILE.pub")
    return key


def write_signature(file: Path, key: Any) -> Path:
    """Sign a file's bytes, and return where the signature lies."""
    target = file.with_name(file.name + SUFFIX)
    with writing(target, "free some space, or make the folder writable"):
        write_bytes(target, key.sign(read_bytes(file)))
    return target


def signed(file: Path, key: Any) -> bool:
    """Tell whether the signature beside a file is that of the key's owner, over this content."""
    try:
        key.verify(read_bytes(file.with_name(file.name + SUFFIX), _KEY_LIMIT), read_bytes(file))
    except importlib.import_module("cryptography.exceptions").InvalidSignature:
        return False
    return True
