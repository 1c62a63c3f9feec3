"""Text, for models that predict the next character: an embedded one, files of one's own, or LEAF's Shakespeare.

An example is a sequence of characters as whole numbers, (length,), and its target the same one character later. A text is a
client, or several if it is long; the end of every client's text is its share of the test set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from anybit.data.examples import Data, Examples
from anybit.errors import DataError, RunError
from anybit.files.reading import read_bytes

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""Line feed and printable ASCII. A character is its position from 1; 0 stands for every other one."""
MOST_BYTES = 1 << 30
"""Of a folder's files together; all of LEAF's Shakespeare has less than half of it."""
MOST_CHARACTERS = 10_000
"""Of an alphabet."""


def text(folder: str = "", length: int = 64, stride: int = 0, longest: int = 0, test_share: float = 0.1,
         alphabet: str = ALPHABET) -> Data:
    """Load texts for next-character prediction: the help topics of the running Python, whose wording differs by version.

    folder: read its .txt files instead, or LEAF's all_data*.json · length: characters of an example · stride: characters
    from one example to the next; 0: `length`, so that none is seen twice · longest: characters of a client, above which a
    text becomes several clients of about equal length; 0: never · test_share: held out from the end of every client.
    Texts too short for an example in both parts are left out.
    """
    _check(length, stride, longest, test_share, alphabet)
    stride = stride or length
    clients = list[tuple[np.ndarray, np.ndarray]]()
    for rows in _clients(folder, length, stride, longest, test_share, alphabet):
        if all(map(len, rows)):
            clients.append(rows)
    if not clients:
        raise DataError(f"data 'text': no text is long enough for examples of {length} characters to train on and to test: "
                        "lower data.length")
    train, test = (torch.from_numpy(np.concatenate(part)) for part in zip(*clients, strict=True))
    ids = np.repeat(np.arange(len(clients)), [len(rows) for rows, _ in clients])
    named = {"\n": "line feed", " ": "space"}
    return Data(_shifted(train), _shifted(test), class_names=("other", *(named.get(c, c) for c in alphabet)), ids=ids)


def _check(length: int, stride: int, longest: int, test_share: float, alphabet: str) -> None:
    for name, value, least in (("length", length, 1), ("stride", stride, 0), ("longest", longest, 0)):
        if value < least:
            raise DataError(f"data.{name} = {value}: must be at least {least}")
    if not 0 < test_share < 1:
        raise DataError(f"data.test_share = {test_share}: must be between 0 and 1")
    if not 0 < len(set(alphabet)) == len(alphabet) <= MOST_CHARACTERS:
        raise DataError(f"data.alphabet: needs 1 to {MOST_CHARACTERS:,} different characters, each of them once")


def _clients(folder: str, length: int, stride: int, longest: int, test_share: float,
             alphabet: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Give (training rows, test rows) of every client; a row has length + 1 characters."""
    def held_out(total: int, least: int) -> int:
        return total - max(least, round(test_share * total))

    if folder and (files := sorted(Path(folder).expanduser().glob("all_data*.json"))):
        for rows in _leaf(files, length, stride, alphabet):
            cut = max(held_out(len(rows), 1), 0)
            yield rows[:cut], rows[cut:]
        return
    for whole in _files(Path(folder).expanduser()) if folder else _topics():
        coded = _encoded(whole, alphabet)
        for part in np.array_split(coded, -(-len(coded) // longest) if longest and len(coded) else 1):
            cut = max(held_out(len(part), length + 1), 0)
            yield _rows(part[:cut], length, stride), _rows(part[cut:], length, stride)


def _topics() -> list[str]:
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def _files(folder: Path) -> Iterator[str]:
    """Read a folder's .txt files, in the order of their names."""
    paths = sorted(folder.glob("*.txt"))
    if not paths:
        raise DataError(f"data.folder = '{folder}': holds no .txt files, nor LEAF's all_data*.json")
    for path, content in _bounded(paths):
        try:
            yield content.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text (byte {error.start}): convert it, or move it away") from None


def _leaf(paths: Iterable[Path], length: int, stride: int, alphabet: str) -> Iterator[np.ndarray]:
    """Give the rows of every user: the last characters of x, and y. LEAF has one x per character, so `stride` is kept."""
    for path, content in _bounded(paths):
        try:
            read = json.loads(content)
            users = [(read["user_data"][user]["x"], read["user_data"][user]["y"]) for user in read["users"]]
            together = [[x[-length:] + y for x, y in zip(xs[::stride], ys[::stride], strict=True)] for xs, ys in users]
            if any(len(row) != length + 1 for rows in together for row in rows):
                raise ValueError(f"an x has fewer than data.length = {length} characters, or a y is not one")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} is not LEAF's users, user_data of x and y ({type(error).__name__}: {error})") from None
        for rows in together:
            yield _encoded("".join(rows), alphabet).reshape(-1, length + 1)


def _bounded(paths: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    left = MOST_BYTES
    for path in paths:
        try:
            content = read_bytes(path, left)
        except RunError as error:
            raise DataError(f"{error} (of {MOST_BYTES:,} for a folder's texts)") from None
        left -= len(content)
        yield path, content


def _encoded(text: str, alphabet: str) -> np.ndarray:
    """Return the position of every character in the alphabet, from 1; 0 where it has none."""
    codes, known = (np.frombuffer(s.encode("utf-32-le", "surrogatepass"), np.uint32) for s in (text, alphabet))
    order = np.argsort(known)
    place = order[np.searchsorted(known, codes, sorter=order).clip(max=len(known) - 1)]
    return np.where(known[place] == codes, place + 1, 0)


def _rows(coded: np.ndarray, length: int, stride: int) -> np.ndarray:
    """Cut a text into rows of length + 1 characters that start `stride` apart."""
    if len(coded) <= length:
        return np.zeros((0, length + 1), np.int64)
    return np.lib.stride_tricks.sliding_window_view(coded, length + 1)[::stride]


def _shifted(rows: torch.Tensor) -> Examples:
    return Examples(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
