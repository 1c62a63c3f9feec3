"""Checks of what run folders and results files say, whoever made them: scores, evaluations, metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from anybit.errors import ConfigError, RunError
from anybit.federated.metrics import Better
from anybit.quant.grid import SiteKinds, Width

_WRONG = (KeyError, TypeError, ValueError, AttributeError, OverflowError, ConfigError)


def checked_evaluation(content: Any, path: Path) -> dict[str, Any]:
    """Check the content of evaluation.json: {metric[, better, unit], variant, own, sites, test_examples, grid
    [, mixed, privacy]}."""
    try:
        for key in ("metric", "variant", "own"):
            _text(content[key])
        _text(content.get("unit", ""))
        if content.get("better") not in (None, *get_args(Better)):
            raise ValueError(f"better {content['better']!r}")
        _whole(content.get("test_examples", 0))
        if content["sites"] not in get_args(SiteKinds):
            raise ValueError(f"sites {content['sites']!r}")
        for scores in (*content["grid"].values(), content["grid"][content["own"]], content.get("mixed", {})):
            check_scores(scores)
        if "privacy" in content:
            check_statement(content["privacy"])
    except _WRONG as error:
        raise RunError(f"{path} is not an evaluation ({type(error).__name__}: {error})") from None
    evaluation: dict[str, Any] = content
    return evaluation


def checked_metrics(entries: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Check the lines of metrics.jsonl: {round[, loss][, evaluation: {steps, scores, layers_at, layers[, average]}]}."""
    for number, entry in enumerate(entries, 1):
        try:
            _whole(entry["round"])
            _number(entry.get("loss", 0.0))  # a private training has none
            if entry.get("evaluation"):
                _check_course(entry["evaluation"])
        except _WRONG as error:
            raise RunError(f"{path}, line {number}, is not a round ({type(error).__name__}: {error})") from None
    return entries


def _check_course(evaluation: Mapping[str, Any]) -> None:
    _text(evaluation["steps"])
    Width.parse(_text(evaluation["layers_at"]))
    for scores in (evaluation["scores"], evaluation.get("last", {}), evaluation.get("average", {})):
        check_scores(scores)
    for health in evaluation["layers"].values():
        _number(health["kurtosis"])
        _number(health["saturation"])


def total_seconds(timing: Sequence[Mapping[str, Any]]) -> float:
    """Add up the times of a training; they are no part of the result, so missing ones and nonsense are left out."""
    times = [entry.get("seconds") for entry in timing]
    return sum(float(t) for t in times if isinstance(t, int | float) and 0 <= t < 1e9)


def check_scores(scores: Mapping[str, Any]) -> None:
    """Raise unless this is {width: {"loss": …, "metric": …}}, numbers, perhaps not finite."""
    for width, score in scores.items():
        Width.parse(width)
        for key in ("loss", "metric"):
            _number(score[key])


def check_statement(privacy: Mapping[str, Any]) -> None:
    """Raise unless this is a promise of privacy: numbers, or an ε beyond them (none), and texts."""
    for key in ("delta", "clip", "noise"):
        _number(privacy[key])
    for key in ("rounds", "cohort"):
        _whole(privacy[key])
    for key in ("neighbours", "where", "sampling", "accountant"):
        _text(privacy[key])
    for key in ("epsilon", "epsilon_server"):
        if privacy.get(key) is not None:
            _number(privacy[key])


def promise(evaluation: Mapping[str, Any] | None) -> str | None:
    """Put a run's promise of privacy into words; none where nothing is promised."""
    if not (privacy := (evaluation or {}).get("privacy")):
        return None
    epsilon, server = (_epsilon(privacy.get(key)) for key in ("epsilon", "epsilon_server"))
    against = f", {server} against the server" if "epsilon_server" in privacy else ""
    known = "" if privacy.get("secret") else "; noise drawn by the seed, a simulation"
    return f"({epsilon}, δ = {privacy['delta']:.2g}) per client ({privacy['neighbours']}){against}{known}"


def _epsilon(value: float | None) -> str:
    return "ε beyond all numbers" if value is None else f"ε = {value:.3g}"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)
