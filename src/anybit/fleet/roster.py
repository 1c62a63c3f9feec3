"""The roster of a run: nodes with their clients and widths, and the nodes that have fallen silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from anybit.fleet.device import device_width
from anybit.fleet.exchange import Exchange, Question, Reply
from anybit.fleet.flower import RecordDict
from anybit.fleet.registry import Registry
from anybit.fleet.text import brief
from anybit.fleet.wire import Refused, check_content, read_values
from anybit.quant.grid import SiteKinds, Width

REST = 60
"""Seconds before a refused node is greeted again: its owner may have fixed it."""
GREETING = 60
"""Seconds that a node has for its first answer."""
MOST_CLIENTS = 2**31
HELLO = {"client": int, "width": str, "role": str}


class Member(NamedTuple):
    """A device that has said hello."""

    node: int
    client: int
    width: Width | None
    """The width of its hardware; none: drawn by the variant."""
    inference: bool


@dataclass
class Roster:
    """All nodes of a run. Every node is asked who it is until it answers, and again after it was silent."""

    exchange: Exchange
    sites: SiteKinds
    wait: float
    registry: Callable[[], Registry] | None = None
    """The client, width and role of every key; none: what devices say is believed, as in a simulation."""
    members: dict[int, Member] = field(default_factory=dict)
    """The devices by node."""
    known: dict[int, Member] = field(default_factory=dict)
    """The last device that was each client: its width and role stay for the run."""
    silent: set[int] = field(default_factory=set)
    """Nodes that were asked to work and did not answer."""
    resting: dict[int, float] = field(default_factory=dict)
    """The time until which a node is not greeted (again), by node."""
    patience: dict[int, float] = field(default_factory=dict)
    """The seconds that an unanswered node had for its last greeting."""
    asked: dict[str, Question] = field(default_factory=dict)
    connected: set[int] = field(default_factory=set)
    keys: dict[int, bytes] = field(default_factory=dict)
    """The public key with which a node signs its requests, by node, as the SuperLink has verified it."""

    def refresh(self) -> None:
        """Greet new and silent nodes, and read the answers that have arrived, without waiting."""
        grid = self.exchange.grid
        self.keys = {} if self.registry is None else {node.node_id: node.public_key for node in grid.get_nodes()}
        self.connected = set(grid.get_node_ids()) if self.registry is None else set(self.keys)
        for id, reply in self.exchange.receive(self.asked).items():
            self._welcome(self.asked.pop(id).node, reply)
        now = self.exchange.clock()
        known = {node for node in self.members if node not in self.silent}
        known |= {node for node, until in self.resting.items() if now < until}
        greeted = self.connected - known
        self.asked = {id: question for id, question in self.asked.items() if question.node not in greeted}
        for node in sorted(greeted):
            self._greet(node, now)

    def _greet(self, node: int, now: float) -> None:
        """Ask a node who it is, with twice the patience of the last time: a greeting may be lost, a device may be slow."""
        patience = min(self.wait, 2 * self.patience[node] if node in self.patience else GREETING)
        if sent := self.exchange.send([Question(node, -1, "query.hello", RecordDict())], patience):
            self.asked |= sent
            self.patience[node], self.resting[node] = patience, now + patience

    def _welcome(self, node: int, reply: Reply) -> None:
        self.resting.pop(node, None)
        if reply.gone:
            return
        self.patience.pop(node, None)
        try:
            member = self._checked(node, reply)
        except Exception as error:  # no device can stop a run
            self.resting[node] = self.exchange.clock() + REST
            self.exchange.log({"event": "refused", "node": node, "reason": brief(error, 250)})
            return
        former = self.known.get(member.client)
        if former is not None and former.node != node:
            self.members.pop(former.node, None)
        event = "back" if node in self.silent else "device"
        self.silent.discard(node)
        self.members[node] = self.known[member.client] = member
        self.exchange.log({"event": event, "node": node, "client": member.client, "inference": member.inference,
                           "width": str(member.width) if member.width else None})

    def _checked(self, node: int, reply: Reply) -> Member:
        """Read who a node says it is, or raise: it must not be another client, width or role than before."""
        if reply.content is None:
            raise Refused(reply.error)
        check_content(reply.content, HELLO, {})
        values = read_values(reply.content, HELLO)
        if not 0 <= values["client"] < MOST_CLIENTS or values["role"] not in ("train", "inference"):
            raise Refused(f"it claims to be client {values['client']}, role '{brief(values['role'], 20)}': neither can be")
        member = Member(node, values["client"], device_width(values["width"], self.sites), values["role"] == "inference")
        self._check_key(member)
        before, former = self.members.get(node), self.known.get(member.client)
        if before is not None and before.client != member.client:
            raise Refused(f"it claims to be client {member.client}, but was client {before.client}")
        if former is not None and former.node != node and former.node in self.connected:
            raise Refused(f"it claims to be client {member.client}, which is node {former.node}")
        if former is not None and member != former._replace(node=node):
            raise Refused(f"it claims to be client {member.client} with {_described(member)}, which has "
                          f"{_described(former)} in this run")
        return member

    def _check_key(self, member: Member) -> None:
        """Raise Refused unless a node's key stands for the client, width and role that it claims."""
        if self.registry is None:
            return
        listed = self.registry().get(self.keys.get(member.node, b""))
        if listed is None:
            raise Refused(f"it claims to be client {member.client}, but its key is not in devices.toml")
        own = Member(member.node, listed.client, device_width(listed.width, self.sites), listed.role == "inference")
        if member != own:
            raise Refused(f"it claims to be client {member.client} with {_described(member)}, but its key is that of client "
                          f"{own.client} with {_described(own)}")

    def present(self, inference: bool = False) -> dict[int, Member]:
        """Return {client: device} of those that are connected and not silent, sorted by client."""
        here = (m for m in self.members.values() if m.node in self.connected - self.silent and m.inference == inference)
        return {m.client: m for m in sorted(here, key=lambda m: m.client)}


def _described(member: Member) -> str:
    return f"width {member.width or 'any'}, role {'inference' if member.inference else 'train'}"
