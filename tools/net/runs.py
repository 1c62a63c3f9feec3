"""Tiny runs of everything, written into a folder by whichever anybit is on the path: `python runs.py FOLDER PORT`.

Only names that hold from version to version are used: the command line, `anybit.fit`, and the fleet's two apps.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from flwr.app import Error
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import anybit
from anybit.cli.main import run as command
from anybit.fleet.client_app import app
from anybit.fleet.flower import Context, Message, RecordDict

HERE = Path(__file__).parent
IMPORTING = ("show", "run", "resume", "sweep", "eval", "export", "bound")
ENGINES = ("sequential", "stacked", "processes")

VARIANTS: dict[str, list[str]] = {
    "baseline": [],
    "dropout": ["variant.dropout=0.3", "variant.weight_decay=0.01"],
    **{f"kure-{sites}": ["variant.name=kure", f"variant.sites={sites}", "variant.scale=0.1"] for sites in ("W", "A", "WA")},
    **{f"apqn-{sites}": ["variant.name=apqn", f"variant.sites={sites}", "variant.bits=4"] for sites in ("W", "A", "WA")},
    **{f"qat-{sites}": ["variant.name=qat", f"variant.sites={sites}", "variant.bits=2", "variant.start=minmax"]
       for sites in ("W", "A", "WA")},
    **{f"mqat-{sites}": ["variant.name=mqat", f"variant.sites={sites}", "variant.bits=[2, 3, 4, 6, 8, 32]",
                         "variant.start=mse", "variant.fixed=false"] for sites in ("W", "A", "WA")},
}
MQAT = VARIANTS["mqat-W"]
VARIANTS |= {
    "mqat-fixed": [*MQAT, "variant.fixed=true"],
    "learned": [*VARIANTS["mqat-WA"], "ranges.learned=true"],
    "learned-clip": [*VARIANTS["qat-W"], "ranges.learned=true", "client.clip=0.5", "sites.per_channel=true"],
}

ALONE: dict[str, list[str]] = {
    "resnet20": [*MQAT, "model.name=resnet20", "model.in_channels=1", "model.classes=10", "model.groups=2",
                 "model.shortcut=A", "model.init=torch", "rounds=1", "cohort=2", "evaluation.sites=[\"W\"]"],
    "native": [*MQAT, "compute.convolution=native"],
    "native-apqn": [*VARIANTS["apqn-WA"], "compute.convolution=native"],
    "channels-last": [*MQAT, "compute.convolution=channels-last"],
    "no-onednn": [*MQAT, "compute.convolution=no-onednn"],
    "chunked": [*MQAT, "engine=stacked", "compute.chunk=2"],
    "bf16": [*MQAT, "compute.precision=bf16"],
    "narrow": [*VARIANTS["mqat-WA"], "sites.weight_grid=narrow", "sites.activation_grid=unsigned",
               "sites.quantize_image=false"],
    "first-last": [*MQAT, "sites.first_last_bits=8", "sites.full_precision=[\"9\"]"],
    "per-channel": [*MQAT, "sites.per_channel=true", "evaluation.mixed=true"],
    "ranges-mse": [*VARIANTS["mqat-WA"], "ranges.activations=mse", "ranges.weights=cover"],
    "ranges-running": [*VARIANTS["qat-A"], "ranges.activations=running", "ranges.weights=lsq", "ranges.evaluate=minmax"],
    "examples": [*MQAT, "weighting=examples", "server.optimizer=yogi"],
    "sgd": [*MQAT, "server.optimizer=sgd", "server.lr=0.5"],
    "adagrad": [*MQAT, "server.optimizer=adagrad"],
    "median": [*VARIANTS["learned"], "server.mean=median"],
    "trimmed": [*MQAT, "server.mean=trimmed", "server.trim=0.34"],
    "stratified": [*VARIANTS["mqat-fixed"], "sampling.policy=stratified"],
    "weighted": [*VARIANTS["mqat-fixed"], "sampling.policy=weighted", "sampling.weights={W2 = 3}"],
}

FLEETS: dict[str, list[str]] = {
    "plain": [*MQAT],
    "learned": [*VARIANTS["learned"], "fleet.uplink_bits=8", "fleet.norm_bound=0.5"],
    "ranges": [*VARIANTS["mqat-WA"], "ranges.activations=mse", "server.mean=median"],
}


def main(out: Path, port: str) -> None:
    """Every run, one after another, in one process."""
    out.mkdir(parents=True)
    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE))
    recipe = known_recipe(out)
    for name, settings in VARIANTS.items():
        for engine in ENGINES:
            train(recipe, out / f"{name}-{engine}", [*settings, f"engine={engine}"])
    for name, settings in ALONE.items():
        train(recipe, out / name, settings)
    resumed(out)
    ranks(recipe, out / "ranks", port)
    sweep(recipe, out / "sweep", MQAT, "variant.bits=[2, 4],[2, 32]")
    sweep(recipe, out / "sweep-learned", VARIANTS["learned"], "variant.bits=[2, 4],[2, 32]")
    sweep(recipe, out / "sweep-strengths", VARIANTS["kure-WA"], "variant.scale=0.1,0.5")
    for name, settings in FLEETS.items():
        fleet(recipe, out / f"fleet-{name}", settings)
    fitted(out / "fit")
    looked_at(out)


def known_recipe(out: Path) -> Path:
    """base.toml without the settings that this anybit does not know yet, which it therefore cannot have."""
    from anybit import recipes

    content = tomllib.loads((HERE / "base.toml").read_text())
    path = out / "recipe.toml"
    path.write_text(recipes.as_toml(content))
    try:
        with_command("show", str(path))
    except anybit.AnybitError as error:
        for place in [part.split(" is unknown")[0] for part in str(error).split("; ") if " is unknown" in part]:
            table: dict[str, Any] = content
            *above, key = place.split(".")
            for name in above:
                table = table[name]
            print(f"not known to this version: {place} = {table.pop(key)}", file=sys.stderr)
        path.write_text(recipes.as_toml(content))
    return path


def with_command(*words: str, refusal: bool = False) -> str:
    """What an anybit command prints; with `refusal` it may end in an error, whose text is part of that."""
    printed = io.StringIO()
    importing = ["--import", "net_models"] if words[0] in IMPORTING else []
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = command([*words, *importing])
        except anybit.AnybitError as error:
            if not refusal:
                raise
            return f"{printed.getvalue()}\n{error}\n"
    assert code == 0, words
    return printed.getvalue()


def train(recipe: Path, path: Path, settings: list[str]) -> None:
    print(path.name, file=sys.stderr, flush=True)
    with_command("run", str(recipe), *settings, "--path", str(path), "--quiet")


def sweep(recipe: Path, path: Path, settings: list[str], vary: str) -> None:
    """Two values of a setting and two seeds, side by side in one program."""
    print(path.name, file=sys.stderr, flush=True)
    said = [setting for setting in settings if setting.partition("=")[0] != vary.partition("=")[0]]
    with_command("sweep", str(recipe), *said, "engine=stacked", "--vary", vary, "--seeds", "1,2", "--path", str(path))


def resumed(out: Path) -> None:
    """A run that was cut off after its second round goes on."""
    for name in ("learned-sequential", "kure-WA-processes"):
        path = shutil.copytree(out / name, out / f"{name}-resumed")
        for file in ("evaluation.json", "model.safetensors", "steps.json", "checkpoints/round-000003.safetensors"):
            (path / file).unlink()
        with_command("resume", str(path), "--quiet")


def ranks(recipe: Path, path: Path, port: str) -> None:
    """The same over two ranks of torchrun."""
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port,
                    "-m", "anybit", "run", str(recipe), *VARIANTS["learned"], "--path", str(path), "--quiet",
                    "--import", "net_models"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class LocalGrid(Grid):
    """Devices in this process that answer at once."""

    def __init__(self, nodes: dict[int, dict[str, Any]]) -> None:
        self.nodes = nodes
        self.inbox: dict[str, Message] = {}
        self.asked = 0

    def get_node_ids(self) -> list[int]:
        return [100 + client for client in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            id, client = f"m{self.asked}", message.metadata.dst_node_id - 100
            self.asked += 1
            message.metadata.__dict__["_message_id"] = id
            context = Context(1, 100 + client, {"partition-id": client, **self.nodes[client]}, RecordDict(),
                              {"imports": "net_models"})
            try:
                self.inbox[id] = app(message, context)
            except anybit.AnybitError as error:
                self.inbox[id] = Message(Error(2, str(error)), reply_to=message)
            ids.append(id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.inbox.pop(id) for id in message_ids if id in self.inbox]

    def set_run(self, run: Any) -> None: ...
    def run(self) -> Any: ...  # type: ignore[override]
    def create_message(self, *arguments: Any) -> Any: ...
    def send_and_receive(self, *arguments: Any, **named: Any) -> Any: ...


def fleet(recipe: Path, path: Path, settings: list[str]) -> None:
    """Four devices, one of them with a width of its own and one that only infers, through Flower's messages."""
    from anybit.fleet.server_app import server_app

    print(path.name, file=sys.stderr, flush=True)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    nodes: dict[int, dict[str, Any]] = {0: {}, 1: {"bits": 4}, 2: {}, 3: {"bits": 2, "role": "inference"}}
    words = " ".join(f"'{setting}'" for setting in [*settings, "rounds=2"])
    context = Context(1, 1, {}, RecordDict(), {"run": str(path), "overrides": words, "imports": "net_models"})
    server_app(recipe)(LocalGrid(nodes), context)


def fitted(path: Path) -> None:
    """The same from Python, with objects."""
    import net_models
    import numpy as np
    from sklearn.datasets import load_digits

    torch.manual_seed(3)
    raw = load_digits()
    x, y = (raw.images[:, None] / 16).astype(np.float32), raw.target
    clients = [(x[i:i + 40], y[i:i + 40]) for i in range(0, 400, 40)]
    result = anybit.fit(net_models.small(6), clients, (x[1500:], y[1500:]),
                        anybit.mqat(bits=(2, 3, 4, 6, 8, 32), sites="WA", start="mse", fixed=False), rounds=3, cohort=4,
                        seed=1, engine="sequential", device="cpu", checkpoint_every=2, path=path,
                        client=anybit.ClientOptions(lr=0.05, batch_size=16, epochs=1, step_lr=0.01))
    (path / "result.txt").write_text(f"{result.scores}\n{result.steps.to_json()}\n")


def looked_at(out: Path) -> None:
    """What the verbs that read runs make of them."""
    run, page = str(out / "mqat-WA-sequential"), str(out / "report")
    texts = {"eval.json": with_command("eval", run, "--width", "W4A8", "--width", "W2", "--json"),
             "eval-mse.json": with_command("eval", run, "--steps", "mse", "--json"),
             "bound.json": with_command("bound", str(out / "qat-W-sequential"), "--json", refusal=True),
             "report.json": with_command("report", run, str(out / "baseline-stacked"), "--out", page, "--json")}
    for runtime in ("onnx", "archive"):
        with_command("export", run, "--width", "W4A8", "--width", "W2", "--runtime", runtime, "--out",
                     str(out / f"export-{runtime}"))
    with_command("collect", str(out / "sweep"), str(out / "fit"), "--out", str(out / "results.json"))
    with_command("collect", str(out / "sweep"), "--out", str(out / "results.csv"))
    for name, text in texts.items():
        (out / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
