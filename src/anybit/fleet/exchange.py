"""Questions to devices and their answers: every question has a deadline, and an answer counts once or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anybit.fleet.flower import Grid, Message, RecordDict
from anybit.fleet.text import brief
from anybit.fleet.wire import payload_bytes

UNREACHABLE = (3, 4, 5)
"""Flower's error codes for a question or answer that is lost, and for a node that is gone."""
REASON = 2000
"""The characters of an error's reason that are read."""
LATER = 2
"""The lifetime of a question in deadlines: beyond the first, so that a late answer can be logged."""


class Question(NamedTuple):
    """One message to one device."""

    node: int
    client: int
    kind: str
    """Flower's message type: train, evaluate, query.hello, …"""
    content: RecordDict


class Reply(NamedTuple):
    """A device's content, or the error in its place."""

    client: int
    content: RecordDict | None
    error: str
    gone: bool
    """The device could not be reached."""
    bytes: int


@dataclass
class Exchange:
    """All traffic with the devices of one run."""

    grid: Grid
    poll: float
    log: Callable[[dict[str, Any]], None]
    overdue: dict[str, Question] = field(default_factory=dict)
    """Questions whose answers no longer count; they are still fetched, to be logged."""
    answered: set[str] = field(default_factory=set)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def ask(self, questions: list[Question], deadline: float) -> dict[int, Reply]:
        """Send questions, and return {client: reply} of those that are answered within `deadline` seconds."""
        waiting, replies, end = self.send(questions, LATER * deadline), dict[int, Reply](), self.clock() + deadline
        while waiting:
            arrived = self.receive(waiting)
            replies |= {reply.client: reply for reply in arrived.values()}
            waiting = {id: question for id, question in waiting.items() if id not in arrived}
            if self.clock() >= end:
                break
            if waiting:
                self.sleep(min(self.poll, end - self.clock()))
        self.overdue |= waiting
        return replies

    def send(self, questions: list[Question], ttl: float) -> dict[str, Question]:
        """Send questions, one push each: Flower limits the size of a push, not the number. Return {message id: question}."""
        sent: dict[str, Question] = {}
        for question in questions:
            ids = self.grid.push_messages([Message(question.content, question.node, question.kind, ttl=ttl)])
            sent |= {id: question for id in ids if id}
        return sent

    def receive(self, waiting: Mapping[str, Question]) -> dict[str, Reply]:
        """Return {message id: reply} of what has arrived. Late, repeated and unasked answers are logged and dropped."""
        replies: dict[str, Reply] = {}
        if not waiting and not self.overdue:
            return replies
        for message in self.grid.pull_messages([*waiting, *self.overdue]):
            id, sender = message.metadata.reply_to_message_id, message.metadata.src_node_id
            question = waiting.get(id) or self.overdue.get(id)
            if id in replies or id in self.answered:
                self.log({"event": "duplicate", "client": question.client if question else None, "node": sender})
            elif question is None:
                self.log({"event": "stale", "node": sender})
            elif message.has_content() and sender != question.node:
                self.log({"event": "impostor", "client": question.client, "node": sender})
            elif id in self.overdue:
                del self.overdue[id]
                self.answered.add(id)
                if message.has_content():
                    self.log({"event": "late", "client": question.client, "node": question.node, "kind": question.kind})
            else:
                replies[id] = _reply(question, message)
        self.answered |= set(replies)
        return replies


def _reply(question: Question, message: Message) -> Reply:
    if message.has_error():
        # The end alone: a device can send a reason of any length, and its last line says the most.
        reason = (message.error.reason or "")[-REASON:].strip().splitlines() or ["no reason given"]
        return Reply(question.client, None, f"error {message.error.code}: {brief(reason[-1], 200)}",
                     message.error.code in UNREACHABLE, 0)
    try:
        return Reply(question.client, message.content, "", False, payload_bytes(message.content))
    except Exception as error:  # no device can stop a run
        return Reply(question.client, None, f"an answer that cannot be read ({brief(error, 200)})", False, 0)
