"""The devices of one run: presence, questions, and the judgement of their answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from anybit.config import Config
from anybit.errors import RunError
from anybit.fleet.exchange import Exchange, Question, Reply
from anybit.fleet.flower import ArrayRecord, ConfigRecord, Grid, RecordDict
from anybit.fleet.quarantine import Quarantine
from anybit.fleet.registry import Registry
from anybit.fleet.roster import Member, Roster
from anybit.fleet.text import brief, harmless
from anybit.fleet.wire import Refused
from anybit.quant.grid import SiteKinds, Width
from anybit.schema import plain
from anybit.training.run_folder import RunFolder

T = TypeVar("T")

_WORDS = {"late": "client {client} (node {node}) answered late; not counted",
          "duplicate": "client {client} (node {node}) answered twice; counted once",
          "impostor": "node {node} answered for client {client}; not counted",
          "back": "client {client} (node {node}) is back", "refused": "node {node} is refused: {reason}",
          "quarantine": "client {client} (node {node}) failed {failures} times in a row; it is asked again in round {until}",
          "stale": "node {node} answered a question that was not asked; not counted"}


class Devices:
    """All devices of a run. Events are logged to the run's fleet.jsonl; problems are also reported in words."""

    def __init__(self, grid: Grid, config: Config, sites: SiteKinds, say: Callable[[str], None] = lambda text: None,
                 registry: Callable[[], Registry] | None = None) -> None:
        self.options, self.say = config.fleet, say
        self.exchange = Exchange(grid, self.options.poll, self.event)
        self.roster = Roster(self.exchange, sites, self.options.wait, registry)
        self.quarantine = Quarantine(self.options.quarantine)
        self.tell(config)
        self.folder: RunFolder | None = None
        """The run's folder, once there is one."""
        self.round = 0
        """The number of rounds done, sent with every question."""

    def tell(self, config: Config) -> None:
        """Send this config with every question from now on."""
        self.config_text = json.dumps(plain(config))

    def event(self, entry: dict[str, Any]) -> None:
        """Log an event, and report it if something went wrong."""
        entry = harmless(entry)
        if self.folder:
            self.folder.append("fleet", entry)
        if text := _words(entry):
            self.say(text)

    def present(self, wanted: int, least: int) -> dict[int, Member]:
        """Wait for training devices until `wanted` are there, or until fleet.wait is over and `least` are.

        Those in quarantine are left out, unless the round would have too few without them.
        """
        roster, exchange = self.roster, self.exchange
        end = exchange.clock() + self.options.wait
        roster.refresh()
        if len(roster.present()) < wanted:
            self.say(f"waiting for devices: {len(roster.present())} of {wanted}")
        while len(roster.present()) < wanted and exchange.clock() < end:
            exchange.sleep(exchange.poll)
            roster.refresh()
        if len(roster.present()) < least:
            raise RunError(f"only {len(roster.present())} devices answered within {self.options.wait:.0f} s, but a round "
                           f"needs {least}: start more SuperNodes, or lower fleet.minimum; a new 'flwr run' continues from "
                           "the checkpoint")
        present = roster.present()
        free = {client: m for client, m in present.items() if not self.quarantine.holds(m.node, self.round)}
        return free if len(free) >= least else present

    def question(self, member: Member, kind: str, arrays: Mapping[str, ArrayRecord], width: Width | None = None,
                 images: int = 0) -> Question:
        """Make a message to one device."""
        order = ConfigRecord({"config": self.config_text, "round": self.round, "width": str(width or ""),
                              "images": images})
        return Question(member.node, member.client, kind, RecordDict({"order": order, **arrays}))

    def ask(self, questions: list[Question]) -> dict[int, Reply]:
        """Send questions, and wait for answers until the deadline."""
        return self.exchange.ask(questions, self.options.deadline)

    def judge(self, members: list[Member], replies: Mapping[int, Reply],
              check: Callable[[Reply], T]) -> tuple[list[T], dict[str, Any]]:
        """Return the answers that pass `check`, and a log entry with the missing and the rejected clients."""
        good, missing, rejected = list[T](), list[int](), dict[int, str]()
        for member in members:
            reply = replies.get(member.client)
            if reply is None or reply.gone:
                missing.append(member.client)
                self.roster.silent.add(member.node)
                continue
            try:
                good.append(check(reply))
            except Refused as reason:
                rejected[member.client] = str(reason)
            except Exception as error:  # no device can stop a run
                rejected[member.client] = f"an answer that cannot be read ({type(error).__name__}: {brief(error, 200)})"
        return good, {"asked": [member.client for member in members], "nodes": [member.node for member in members],
                      "answered": len(good), "missing": missing,
                      "rejected": rejected}

    def count_failures(self, members: list[Member], log: Mapping[str, Any]) -> None:
        """Count who failed in a round, by the entry that `judge` gave, and put into quarantine who failed too often."""
        for member in members:
            if member.client not in log["rejected"] and member.client not in log["missing"]:
                self.quarantine.succeeded(member.node)
            elif (until := self.quarantine.failed(member.node, self.round)) is not None:
                self.event({"event": "quarantine", "client": member.client, "node": member.node,
                            "failures": self.quarantine.failures[member.node], "until": until + 1})


def _words(entry: Mapping[str, Any]) -> str:
    """Put an event into words; nothing when all went well."""
    kind = entry["event"]
    if kind in _WORDS:
        return _WORDS[kind].format(**entry)
    if "missing" not in entry:
        return ""
    stage = f"round {entry['round']}" if kind == "round" else kind
    lines = [f"{stage}: client {client} did not answer" for client in entry["missing"]]
    lines += [f"{stage}: client {client} is rejected: {reason}" for client, reason in entry["rejected"].items()]
    lines += [f"{stage}: client {client}'s delta is clipped, norm {norm:.4g}"
              for client, norm in entry.get("clipped", {}).items()]
    return "\n".join(lines)
