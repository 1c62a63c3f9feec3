"""What a person sees in a narrow terminal."""

from __future__ import annotations

import pytest

from anybit.cli.console import print_table


def test_a_narrow_terminal_cuts_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(["recipe", "description"], [["paper/cifar10-lenet5/baseline", "CIFAR-10, LeNet-5"], ["x", "é" * 30]])
    out = capsys.readouterr().out
    assert "paper/cifar10-lenet5/baseline  CIFAR-10, LeNet-5" in out
    assert "é" * 30 in out


def test_numbers_stand_to_the_right_and_words_to_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["run", "accuracy", "state"], [["a", "9.5", "done"], ["b", "10.25", "–"], ["c", "", "waiting"]])
    head, *rows = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert head == "run  accuracy  state"
    assert rows == ["a         9.5  done", "b       10.25  –", "c              waiting"]
