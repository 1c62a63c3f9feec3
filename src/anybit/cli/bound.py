"""bound: Theorem 3.1 for a finished run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from anybit.cli.console import Debug, Import, Json, print_json, print_table, say
from anybit.cli.training import RunPath
from anybit.errors import ConfigError

if TYPE_CHECKING:
    from anybit.theory.run_bound import RunBound


def bound(path: RunPath,
          smoothness: Annotated[float | None, typer.Option("--L", help="Smoothness L; estimated by default.")] = None,
          sigma_l: Annotated[float | None, typer.Option("--sigma-l", help="σ_l, gradient spread within a client.")] = None,
          sigma_g: Annotated[float | None, typer.Option("--sigma-g", help="σ_g, gradient spread between clients.")] = None,
          gap: Annotated[float | None, typer.Option("--gap", help="F(w_1) − F(w*); default: F(w_1).")] = None,
          eta_s: Annotated[float | None, typer.Option("--eta-s", help="η_s; default: the run's server.lr.")] = None,
          imports: Import = None, json: Json = False, debug: Debug = False) -> None:
    """Compute the bound of Theorem 3.1 on ‖∇F‖² for a finished run, term by term."""
    from anybit.theory.estimates import Known
    from anybit.theory.run_bound import run_bound
    from anybit.training.run import Run

    result = run_bound(Run.load(path, trusted=imports or []), Known(smoothness, sigma_l, sigma_g, gap, eta_s))
    if json:
        print_json(result.as_json())
    else:
        _print(result)
    if result.violation:
        raise ConfigError(result.violation)


def _print(result: RunBound) -> None:
    from anybit import theory

    s = result.setting
    for title, values in (("constant", result.constants()), ("coefficient", vars(theory.coefficients(s)))):
        print_table([title, "value"], [[name, f"{value:.6g}"] for name, value in values.items()])
    print_table(["condition", "limit", "holds"],
                [[c.formula, f"{c.limit:.6g}", "yes" if c.holds else "no"] for c in theory.conditions(s)])
    if result.bound is not None:
        terms = {**result.bound.terms(), "bound": result.bound.total}
        print_table(["term", "‖∇F‖² ≤"], [[name.replace("_", " "), f"{value:.4g}"] for name, value in terms.items()])
    say("\n".join([*(f"{name}: {source}" for name, source in result.sources.items()),
                   *(f"outside the theorem: {text}" for text in result.outside), *result.meaning()]))
