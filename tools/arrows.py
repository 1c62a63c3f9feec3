"""The packages of anybit and who imports whom, read from the code; as a script: draw docs/img/packages.svg.

`CONTRACT` says what each may import. A test holds the code to it, and the picture is drawn from the same arrows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src/anybit"
PICTURE = Path(__file__).parents[1] / "docs/img/packages.svg"

GROUND = frozenset({"errors", "randomness", "tensors", "inputs", "environment", "layers", "schema"})
"""Modules of the root that everything may use."""
FLOORS: tuple[tuple[str, ...], ...] = (
    ("files",), ("recipes", "quant", "data"), ("federated", "models"), ("config", "kernels", "engines"), ("training",),
    ("sweeps", "theory", "export"), ("report", "fleet"), ("reproduction", "api"), ("cli",))
"""From the ground up: a package may import what lies below it, and nothing beside or above it."""
FORBIDDEN = {"engines": frozenset({"federated", "data", "quant"}), "federated": frozenset({"files"}),
             "quant": frozenset({"files"}), "models": frozenset({"files", "quant", "data", "recipes"}),
             "data": frozenset(), "kernels": frozenset({"federated", "data", "models", "recipes"})}
"""What lies below and is none of their business all the same."""


def _contract() -> dict[str, frozenset[str]]:
    below: frozenset[str] = frozenset()
    allowed = {}
    for floor in FLOORS:
        for package in floor:
            allowed[package] = (below - FORBIDDEN.get(package, frozenset())) | GROUND
        below |= frozenset(floor)
    return allowed


CONTRACT = _contract()
"""{package: what it may import}."""


def modules() -> dict[str, Path]:
    """List every module by its name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(("anybit", *parts)).removesuffix(".__init__")] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """List the modules of anybit that a file imports, wherever in it, and for types alone, too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "anybit":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def arrows() -> dict[str, set[str]]:
    """Return {module: the modules it imports}."""
    known = modules()
    return {name: set(imports(path, known)) - {name} for name, path in known.items()}


def package_of(module: str) -> str:
    """Return the package (or root module) that a module belongs to; the face itself is 'anybit'."""
    return module if module == "anybit" else module.split(".")[1]


def package_arrows() -> dict[str, set[str]]:
    """Return {package: the packages it imports}."""
    found: dict[str, set[str]] = {}
    for module, targets in arrows().items():
        mine = found.setdefault(package_of(module), set())
        mine |= {package_of(target) for target in targets} - {package_of(module)}
    return found


def circles() -> list[list[str]]:
    """List groups of modules that import each other, directly or not (Tarjan's strongly connected components)."""
    graph, index, low = arrows(), dict[str, int](), dict[str, int]()
    stack, found = list[str](), list[list[str]]()

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in graph[module]:
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            group = stack[stack.index(module):]
            del stack[stack.index(module):]
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def draw() -> str:
    """Draw packages by floor, with an arrow from each to what it imports; those that follow from others are left out."""
    graph = {p: targets & set(CONTRACT) for p, targets in package_arrows().items() if p in CONTRACT}
    place, width, height = dict[str, tuple[float, float]](), 860, 96 * len(FLOORS) + 40
    for level, floor in enumerate(FLOORS):
        for i, package in enumerate(floor):
            place[package] = ((i + 1) * width / (len(floor) + 1) + (28 if level % 2 else -28), height - 78 - 96 * level)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
             '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
             '<path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>',
             f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for package, targets in graph.items():
        for target in sorted(targets - {far for near in targets for far in _reached(graph, near)}):
            (x, y), (u, v) = place[package], place[target]
            lines.append(f'<path d="M{x:.0f} {y + 20:.0f} C{x:.0f} {y + 60:.0f} {u:.0f} {v - 62:.0f} {u:.0f} {v - 22:.0f}" '
                         'fill="none" stroke="#667" stroke-width="1.2" marker-end="url(#tip)"/>')
    for package, (x, y) in place.items():
        lines.append(f'<rect x="{x - 58:.0f}" y="{y - 19:.0f}" width="116" height="38" rx="7" fill="#eef3fb" '
                     f'stroke="#2b5797"/><text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" font-size="15" '
                     f'fill="#1b2a41">{package}</text>')
    ground = " · ".join(sorted(GROUND))
    lines.append(f'<text x="{width / 2}" y="{height - 16}" text-anchor="middle" font-size="12" fill="#556">below all: '
                 f'{ground}</text></svg>')
    return "\n".join(lines) + "\n"


def _reached(graph: dict[str, set[str]], package: str) -> set[str]:
    """Return everything below a package."""
    return {far for near in graph[package] for far in (near, *_reached(graph, near))}


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"wrote {PICTURE.name}")
