"""More rounds for a run that is there, also for a finished one."""

from __future__ import annotations

from dataclasses import replace

import torch

from anybit.config import Config
from anybit.errors import RunError
from anybit.federated.own import Course
from anybit.federated.server import course, pace
from anybit.files.writing import to_json, writing
from anybit.training.ledger import RESULTS
from anybit.training.run_folder import RunFolder


def extended(folder: RunFolder, config: Config, rounds: int, schedule: Course | None = None) -> tuple[Config, int]:
    """Return the config with more rounds, and the round of the last checkpoint that a longer run would have had, too.

    config: with nothing left open · schedule: the user's own. By a schedule a shorter run slows down earlier: what it has
    learned since then is of no use to a longer one.
    """
    if rounds < config.rounds:
        raise RunError(f"{folder.path} has {config.rounds} rounds, and rounds may only grow: {rounds} are fewer")
    kept = [folder.round_of(path) for path in folder.checkpoints()]
    common = _common_rounds(config, rounds, schedule)
    usable = [round for round in kept if round <= common]
    if kept and not usable:
        falls = [setting for setting, falling in (
            ("a schedule that does not know the number of rounds", schedule is not None),
            ("server.schedule=constant", schedule is None and config.server.schedule not in (None, "constant")),
            ("client.schedule=constant", config.client.schedule not in (None, "constant"))) if falling]
        raise RunError(f"{folder.path} cannot be extended: by its schedule a learning rate went down after round {common} "
                       f"of {config.rounds}, and its first checkpoint is of round {kept[0]}: start a new run, with "
                       f"{' and '.join(falls) or 'constant rates'} if it may be given more rounds")
    return replace(config, rounds=rounds), max(usable, default=0)


def check_start(folder: RunFolder, last: int) -> None:
    """Raise unless the run can go on from its checkpoint of round `last`, before anything of it is given up."""
    paths = [path for path in folder.checkpoints() if folder.round_of(path) == last]
    for path in paths:
        folder.load_checkpoint(path, torch.device("cpu"))
    if not paths and folder.finished:
        raise RunError(f"{folder.path} is finished and has no checkpoint to go on from: start a new run in another folder")


def _common_rounds(config: Config, rounds: int, schedule: Course | None) -> int:
    """Count the first rounds in which a run of `rounds` has the same learning rates."""
    def rates(round: int, rounds: int) -> list[float]:
        client = course(config.client.schedule, config.client.decay, round, rounds)
        return [*(float(number) for number in pace(config.server, round, rounds, schedule)), client]

    return next((round for round in range(config.rounds) if rates(round, config.rounds) != rates(round, rounds)),
                config.rounds)


def extend(folder: RunFolder, rounds: int, last: int) -> None:
    """Give the run more rounds, and let it go on from its checkpoint of round `last`.

    A process that is killed between any two lines leaves a run that can be resumed, or extended again.
    """
    config = folder.config()
    with folder.locked(), writing(folder.path, "fix the disk, then do it again"):
        new = {"extended.json": to_json({"from": sorted({*folder.extended_from(), config["rounds"]})}),
               "config.json": to_json({**config, "rounds": rounds})}
        later = [path for path in folder.checkpoints() if folder.round_of(path) > last]
        folder.file("evaluation.json").unlink(missing_ok=True)  # first: from now on it is not finished
        folder.record({**dict.fromkeys(RESULTS), **{f"checkpoints/{path.name}": None for path in later}})
        for path in (*map(folder.file, RESULTS), *later):
            path.unlink(missing_ok=True)
        for name, content in new.items():
            folder.replace(name, content)
