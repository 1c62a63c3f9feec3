"""The import contract: every arrow points down, nothing imports in a circle, and the root is the public face."""

from __future__ import annotations

from pathlib import Path

from tools import arrows


def test_every_package_imports_only_what_lies_below_it() -> None:
    against = {f"{package} → {target}" for package, targets in arrows.package_arrows().items() if package in arrows.CONTRACT
               for target in targets - arrows.CONTRACT[package]}
    assert against == set()


def test_the_ground_knows_nothing_above_it() -> None:
    found = arrows.package_arrows()
    assert {f"{module} → {target}" for module in arrows.GROUND for target in found[module] - arrows.GROUND} == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert arrows.circles() == []


def test_the_root_is_the_public_face_and_the_ground() -> None:
    root = {path.stem for path in arrows.SOURCE.glob("*.py")}
    assert root == {"__init__", "__main__", "api", *arrows.GROUND}
    packages = {path.parent.name for path in arrows.SOURCE.glob("*/__init__.py")}
    assert packages == set(arrows.CONTRACT) - {"api"}


def test_an_arrow_against_the_contract_is_seen(tmp_path: Path) -> None:
    """The reader of imports sees those inside functions and those for types alone."""
    file = tmp_path / "module.py"
    file.write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from anybit.training import loop\n"
                    "def late():\n    import anybit.api\n    from anybit.quant.grid import Width\n")
    assert set(arrows.imports(file, arrows.modules())) == {"anybit.training.loop", "anybit.api", "anybit.quant.grid"}


def test_the_picture_is_drawn_from_the_code() -> None:
    assert arrows.PICTURE.read_text() == arrows.draw(), "python tools/arrows.py draws it anew"
