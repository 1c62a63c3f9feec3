"""The compiled kernels: built once per processor and compiler, kept in <data home>/native, loaded through ctypes.

A file's name holds a fingerprint of its sources and its own digest, so that a damaged or foreign one is never loaded.
Processes that build at the same time write the same file, each beside its place and renamed into it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from anybit.errors import ConfigError
from anybit.files.reading import read_bytes
from anybit.files.writing import home, write_bytes

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC")
"""Flags without any that assume finite numbers, because a loss that is not finite must be noticed."""
FUNCTIONS = {"conv_forward": 5, "conv_grad_input": 4, "conv_grad_weight": 4, "conv_grad_bias": 3, "norm_forward": 8,
             "norm_backward": 12, "pool_forward": 4, "pool_backward": 5, "round_forward": 5, "draw": 2}
"""Functions and their numbers of pointers, of which the last points to the sizes."""
_SOURCES = Path(__file__).parent
_PATIENCE = 300.0
_FIX = "install g++ or clang++, or use another compute.convolution (default, channels-last)"


def missing() -> str | None:
    """Return the reason why the kernels cannot be built here, as far as known without compiling, or None."""
    return None if _compiler() else f"there is no C++ compiler ({', '.join(COMPILERS)})"


def check_compiler() -> None:
    """Raise if the kernels cannot be built here, as far as known without compiling."""
    if why := missing():
        raise ConfigError(f"compute.convolution = 'native', but {why}: {_FIX}")


@functools.cache
def library() -> ctypes.CDLL:
    """Load the kernels, compiled if they are not there yet."""
    check_compiler()
    name = _fingerprint()
    loaded = _kept(name) or _built(name)
    for function, pointers in FUNCTIONS.items():
        getattr(loaded, function).argtypes = [ctypes.c_void_p] * pointers
        getattr(loaded, function).restype = None
    return loaded


def _compiler() -> str | None:
    """Find $CXX, or the first compiler that is installed."""
    return next((path for name in (os.environ.get("CXX", ""), *COMPILERS) if name and (path := shutil.which(name))), None)


def _run(arguments: list[str]) -> bytes:
    compiler = _compiler()
    assert compiler is not None
    try:
        done = subprocess.run([compiler, *arguments], capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"compute.convolution = 'native', but {compiler} cannot be run ({error}): {_FIX}") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines()
        why = next((line for line in lines if "error" in line), lines[-1] if lines else f"status {done.returncode}")
        raise ConfigError(f"compute.convolution = 'native', but {compiler} fails ({why.strip()}): {_FIX}")
    return done.stdout


def _fingerprint() -> str:
    """Hash all that the compiled kernels depend on: sources, flags, and the compiler's macros, which name the processor."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sorted((*_SOURCES.glob("*.h"), *_SOURCES.glob("*.cpp"))):
        digest.update(source.name.encode() + source.read_bytes())
    digest.update(_run(["-march=native", "-dM", "-E", "-x", "c++", os.devnull]))
    return digest.hexdigest()[:16]


def _folder() -> Path:
    return home() / "native"


def _kept(name: str) -> ctypes.CDLL | None:
    """Load an intact library that was built before, if the folder is the user's own: it holds code that is run."""
    with suppress(OSError):
        facts = _folder().stat()
        if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
            return None
        for path in sorted(_folder().glob(f"{name}-*.so")):
            if path == _place(name, read_bytes(path)):
                return ctypes.CDLL(str(path))
    return None


def _place(name: str, content: bytes) -> Path:
    return _folder() / f"{name}-{hashlib.sha256(content).hexdigest()[:32]}.so"


def _built(name: str) -> ctypes.CDLL:
    """Compile and load the kernels, and keep them if the data home can be written; a run does not fail without that."""
    with tempfile.TemporaryDirectory(prefix="anybit-native-") as folder:
        path = Path(folder) / "native.so"
        _run([*FLAGS, str(_SOURCES / "native.cpp"), "-o", str(path)])
        with suppress(OSError):
            _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            content = path.read_bytes()
            write_bytes(_place(name, content), content)
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise ConfigError(f"compute.convolution = 'native', but the compiled library cannot be loaded ({error}): "
                              f"{_FIX}") from None
