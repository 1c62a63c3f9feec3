"""Nothing in the sources unpickles, evaluates text or extracts archives: files are data."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"}
CALLS = {"eval", "exec", "torch.load", "torch.save", "torch.jit.load", "numpy.fromregex", "pandas.read_pickle", "os.system",
         "archive.extractall", "tarfile.extractall", "shutil.unpack_archive", "extractall"}


def dangers(code: str) -> list[str]:
    """What in a module could run code out of a file."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            found.append(node.module or "")
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.rpartition(".")[2]
            allowed = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if name in CALLS or last == "extractall" or allowed.get("allow_pickle", "False") != "False" \
                    or allowed.get("shell", "False") != "False":
                found.append(name)
            if name in ("np.load", "numpy.load") and allowed.get("allow_pickle") != "False":
                found.append(f"{name} without allow_pickle=False")
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_are_data(path: Path) -> None:
    assert dangers(path.read_text()) == []


@pytest.mark.parametrize("code", ["import pickle", "from joblib import load", "torch.load(p)", "eval(text)", "np.load(p)",
                                  "np.load(p, allow_pickle=True)", "numpy.load(p, mmap_mode='r')", "t.extractall('.')",
                                  "subprocess.run(text, shell=True)", "np.save(p, a, allow_pickle=True)"])
def test_the_scan_finds_them(code: str) -> None:
    assert dangers(code)
