"""The devices of one run: who is there, asking them, and judging what they answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from anybit.config import Config
from anybit.files.schema import plain
from anybit.fleet.exchange import Exchange, Question, Reply
from anybit.fleet.flower import ArrayRecord, ConfigRecord, Grid, RecordDict
from anybit.fleet.roster import Member, Roster
from anybit.fleet.wire import Refused
from anybit.quant.grid import SiteKinds, Width
from anybit.training.run_folder import RunFolder

T = TypeVar("T")


class Devices:
    """Asks devices and names what happens to them: in the run's fleet.jsonl, and in words."""

    def __init__(self, grid: Grid, config: Config, sites: SiteKinds, say: Callable[[str], None] = lambda text: None) -> None:
        self.options, self.say = config.fleet, say
        self.exchange = Exchange(grid, self.options.poll, self.event)
        self.roster = Roster(self.exchange, sites, self.options.wait)
        self.config_text = json.dumps(plain(config))
        self.folder: RunFolder | None = None
        """Where events are logged, once there is one."""
        self.round = 0
        """How many rounds are behind the run: in whose name devices are asked."""

    def event(self, entry: dict[str, Any]) -> None:
        """Log what happened, and say it where something went wrong."""
        if self.folder:
            self.folder.append("fleet", entry)
        if text := _words(entry):
            self.say(text)

    def present(self, wanted: int, least: int) -> dict[int, Member]:
        """Wait for training devices: until `wanted` are there, or for as long as the options say and `least` are."""
        return self.roster.await_devices(wanted, least, self.options.wait, self.say)

    def question(self, member: Member, kind: str, arrays: Mapping[str, ArrayRecord], width: Width | None = None,
                 images: int = 0) -> Question:
        """Make one message to one device."""
        order = ConfigRecord({"config": self.config_text, "round": self.round, "width": str(width or ""),
                              "images": images})
        return Question(member.node, member.client, kind, RecordDict({"order": order, **arrays}))

    def ask(self, questions: list[Question]) -> dict[int, Reply]:
        """Send questions, and wait for the answers until the deadline."""
        return self.exchange.ask(questions, self.options.deadline)

    def judge(self, members: list[Member], replies: Mapping[int, Reply],
              check: Callable[[Reply], T]) -> tuple[list[T], dict[str, Any]]:
        """Return the answers that pass `check`, and who did not answer or was rejected, and why."""
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
        asked = [member.client for member in members]
        return good, {"asked": asked, "answered": len(good), "missing": missing, "rejected": rejected}


def _words(entry: Mapping[str, Any]) -> str:
    """Put an event into words; nothing when all went well."""
    kind, who = entry["event"], f"client {entry.get('client')} (node {entry.get('node')})"
    if kind in ("late", "duplicate", "impostor", "back", "refused", "stale"):
        return {"late": f"{who} answered late; not counted", "duplicate": f"{who} answered twice; counted once",
                "impostor": f"node {entry['node']} answered for client {entry.get('client')}; not counted",
                "back": f"{who} is back", "refused": f"node {entry['node']} is refused: {entry.get('reason')}",
                "stale": f"node {entry['node']} answered a question that was not asked; not counted"}[kind]
    if "missing" not in entry:
        return ""
    what = f"round {entry['round']}" if kind == "round" else kind
    lines = [f"{what}: client {client} did not answer" for client in entry["missing"]]
    lines += [f"{what}: client {client} is rejected: {reason}" for client, reason in entry["rejected"].items()]
    lines += [f"{what}: client {client}'s delta is clipped, norm {norm:.4g}"
              for client, norm in entry.get("clipped", {}).items()]
    return "\n".join(lines)
