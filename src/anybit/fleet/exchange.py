"""Questions to devices and their answers: a deadline for every question, and each answer counted once or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anybit.fleet.flower import Grid, Message, RecordDict
from anybit.fleet.wire import payload_bytes

UNREACHABLE = (3, 4, 5)
"""Flower's error codes for a question or answer that is lost, and for a node that is gone."""

LATER = 2
"""Questions live this many deadlines, so that a late answer can be named."""

Log = Callable[[dict[str, Any]], None]


class Question(NamedTuple):
    """One message to one device."""

    node: int
    client: int
    kind: str
    """Flower's message type: train, evaluate, query.hello, …"""
    content: RecordDict


class Reply(NamedTuple):
    """What came back: content, or what went wrong instead."""

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
    log: Log
    overdue: dict[str, Question] = field(default_factory=dict)
    """Questions whose answers no longer count; they are still fetched, to be named."""
    answered: set[str] = field(default_factory=set)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def ask(self, questions: list[Question], deadline: float) -> dict[int, Reply]:
        """{client: reply} of all that answer within `deadline` seconds."""
        waiting, replies, end = self.send(questions, LATER * deadline), dict[int, Reply](), self.clock() + deadline
        while waiting:
            found = self.receive(waiting)
            replies |= {reply.client: reply for reply in found.values()}
            waiting = {id: q for id, q in waiting.items() if id not in found}
            if self.clock() >= end:
                break
            if waiting:
                self.sleep(min(self.poll, end - self.clock()))
        self.overdue |= waiting
        return replies

    def send(self, questions: list[Question], ttl: float) -> dict[str, Question]:
        """{message id: question}. One push each: Flower limits the size of a push, not the number."""
        sent = {}
        for question in questions:
            message = Message(question.content, question.node, question.kind, ttl=ttl)
            for id in self.grid.push_messages([message]):
                if id:
                    sent[id] = question
        return sent

    def receive(self, waiting: Mapping[str, Question]) -> dict[str, Reply]:
        """The replies there are now to these questions. Late, repeated and unasked ones are named and dropped."""
        found: dict[str, Reply] = {}
        if not waiting and not self.overdue:
            return found
        for message in self.grid.pull_messages([*waiting, *self.overdue]):
            id, sender = message.metadata.reply_to_message_id, message.metadata.src_node_id
            question = waiting.get(id) or self.overdue.get(id)
            if id in found or id in self.answered:
                self.log({"event": "duplicate", "client": question.client if question else None, "node": sender})
            elif question is None:
                self.log({"event": "stale", "node": sender})
            elif message.has_content() and sender != question.node:
                self.log({"event": "impostor", "client": question.client, "node": sender})
            elif id in self.overdue:
                self._late(id, question, message)
            else:
                found[id] = _reply(question, message)
        self.answered |= set(found)
        return found

    def _late(self, id: str, question: Question, message: Message) -> None:
        del self.overdue[id]
        self.answered.add(id)
        if message.has_content():
            self.log({"event": "late", "client": question.client, "node": question.node, "kind": question.kind})


def _reply(question: Question, message: Message) -> Reply:
    if message.has_error():
        reason = (message.error.reason or "").strip().splitlines() or ["no reason given"]
        return Reply(question.client, None, f"error {message.error.code}: {reason[-1][:200]}",
                     message.error.code in UNREACHABLE, 0)
    return Reply(question.client, message.content, "", False, payload_bytes(message.content))
