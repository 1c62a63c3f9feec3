"""A federated round in anybit and in its peers, on the same work, taking turns on the same machine.

    python benchmarks/peers.py --folder /tmp/peers --rounds 5

creates one environment per peer in the folder (or reuses it), starts every contestant, lets them compute rounds in
turn, and writes results/performance/peers-cpu-MODEL.json and .svg. Every contestant reports how many samples it trained.
Wall-clock is what counts; on a machine with other work the CPU time of all its processes is the steadier figure.

    python benchmarks/peers.py --folder /tmp/peers --only anybit --against ../before --out /tmp/before-and-after

lets anybit compete with another checkout of itself, row by row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anybit.environment import environment

HERE = Path(__file__).parents[1]
SIDE = HERE / "benchmarks/peers_side"
RESULTS = HERE / "results/performance"
AGAINST = " (the other checkout)"
IMAGES = 500
CORES = os.cpu_count() or 1
TORCH = "torch==2.13.0"
PACKAGES = {"flower": [TORCH, "flwr[simulation]==1.41.0"], "pfl": [TORCH, "pfl[pytorch]==0.6.0"],
            "fedjax": ["jax==0.5.3", "jaxlib==0.5.3", "fedjax==0.0.17"]}


@dataclass
class Contestant:
    """A script in an environment, and what it measured."""

    name: str
    command: list[str]
    ours: bool = False
    home: Path = HERE
    """The checkout whose anybit it runs."""
    process: subprocess.Popen[str] | None = None
    first: float = 0.0
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    error: str = ""
    samples: int = 0

    def start(self, log: Path, clients: int, images: int = IMAGES) -> None:
        side = self.home / "benchmarks/peers_side"
        paths = os.pathsep.join([str(self.home / "src"), str(side), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {**os.environ, "PYTHONPATH": paths, "CLIENTS": str(clients), "IMAGES": str(images)}
        self.samples = clients * images
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=open(log, "w"), env=variables, start_new_session=True)  # noqa: SIM115
        self.log = log

    def round(self) -> None:
        assert self.process
        assert self.process.stdin
        assert self.process.stdout
        before = tree_seconds(self.process.pid)
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            last = [line for line in self.log.read_text().splitlines() if "Error" in line] or ["ended"]
            self.error = last[-1].strip()[:200]
            return
        if answer["samples"] != self.samples:
            self.error = f"trained {answer['samples']} samples, not {self.samples}"
            return
        if not self.first:
            self.first = answer["seconds"]
        else:
            self.seconds.append(answer["seconds"])
            self.cpu.append(tree_seconds(self.process.pid) - before)

    def end(self) -> None:
        if self.process:
            assert self.process.stdin
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def facts(self) -> dict[str, Any]:
        if self.error or not self.seconds:
            return {"name": self.name, "error": self.error or "no round"}
        return {"name": self.name, "ours": self.ours, "first_round": self.first, "median": statistics.median(self.seconds),
                "best": min(self.seconds), "cpu_median": statistics.median(self.cpu), "seconds": self.seconds}


def tree_seconds(pid: int) -> float:
    """CPU seconds so far of a process and everything below it."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(stat.parent.name)
        parents.setdefault(int(fields[1]), []).append(number)
        spent[number] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    total, queue = 0.0, [pid]
    while queue:
        here = queue.pop()
        total += spent.get(here, 0.0)
        queue += parents.get(here, [])
    return total


def environments(folder: Path) -> dict[str, str]:
    """One environment per peer; what cannot be installed is reported by name: {peer: error}."""
    errors = {}
    for peer, packages in PACKAGES.items():
        if (folder / peer / ".ready").exists():
            continue
        try:
            if not (folder / peer / "bin").exists():
                subprocess.run([sys.executable, "-m", "venv", str(folder / peer)], check=True)
            for package in packages:
                keep = ["-c", str(_constraint(folder))] if package != TORCH and TORCH in packages else []
                subprocess.run([str(folder / peer / "bin/pip"), "install", "-q", *keep, package], check=True,
                               capture_output=True, text=True)
            (folder / peer / ".ready").touch()
        except subprocess.CalledProcessError as error:
            errors[peer] = str(error.stderr or error).strip().splitlines()[-1][:300]
    return errors


def _constraint(folder: Path) -> Path:
    path = folder / "constraints.txt"
    path.write_text(TORCH + "\n")
    return path


def contestants(model: str, folder: Path) -> list[Contestant]:
    """Everybody in the best setting that its documentation offers for a CPU, and the defaults."""
    here, many = [sys.executable], str(CORES)

    def script(name: str, *arguments: str) -> list[str]:
        return [str(SIDE / name), model, *arguments]

    def peer(name: str) -> list[str]:
        return [str(folder / name / "bin/python")]

    def own(variant: str, engine: str, convolution: str = "native") -> Contestant:
        return Contestant(f"anybit {variant}, {engine}, {convolution}",
                          here + script("anybit_run.py", variant, engine, convolution, "1"), ours=True)

    ours = [*(own(variant, "processes") for variant in ("baseline", "mqat", "carousel", "kure", "apqn")),
            own("baseline", "sequential"),
            own("baseline", "processes", "channels-last")]
    plain = [Contestant(f"plain PyTorch loop, {many} threads", here + script("plain.py", many)),
             Contestant("plain PyTorch loop, 1 thread", here + script("plain.py", "1")),
             Contestant(f"plain PyTorch loop, {many} threads, channels last",
                        here + script("plain.py", many, "channels-last"))]
    torchrun = [str(folder / "pfl/bin/torchrun"), "--nproc-per-node", many]
    others = [Contestant(f"pfl 0.6.0, {many} processes", torchrun + script("pfl_run.py", "1")),
              Contestant(f"pfl 0.6.0, 1 process, {many} threads", peer("pfl") + script("pfl_run.py", many)),
              Contestant(f"Flower 1.41 on Ray, {many} actors", peer("flower") + script("flower_run.py", many)),
              Contestant("FedJAX 0.0.17, jit", peer("fedjax") + script("fedjax_run.py", "jit")),
              Contestant(f"FedJAX 0.0.17, pmap, {many} devices", peer("fedjax") + script("fedjax_run.py", "pmap"))]
    return [*ours, *plain, *others]


def elsewhere(ours: Contestant, home: Path) -> Contestant:
    """The same row, run by another checkout's anybit."""
    command = [word.replace(str(SIDE), str(home / "benchmarks/peers_side")) for word in ours.command]
    return Contestant(ours.name + AGAINST, command, ours=True, home=home)


def compete(model: str, given: argparse.Namespace, missing: dict[str, str]) -> list[dict[str, Any]]:
    """Start everybody, one round each to warm up, then rounds in turn."""
    folder: Path = given.folder
    field_ = [c for c in contestants(model, folder) if any(text in c.name for text in given.only)]
    if given.against:
        field_ = [one for ours in field_ if ours.ours for one in (ours, elsewhere(ours, given.against.resolve()))]
    for number, one in enumerate(field_):
        absent = next((f"not installed: {e}" for p, e in missing.items() if f"/{p}/" in one.command[0]), "")
        one.error = absent
        if not absent:
            one.start(folder / f"{model}-{number}.log", given.clients)
            one.round()
    for _ in range(given.rounds):
        for one in field_:
            if not one.error:
                one.round()
    for one in field_:
        one.end()
        print(f"  {one.name:45s} " + (one.error or f"{statistics.median(one.seconds):7.3f} s  best {min(one.seconds):7.3f}  "
              f"cpu {statistics.median(one.cpu):7.3f}  first {one.first:.1f}"), flush=True)
    return [one.facts() for one in field_]


def ratios(table: list[dict[str, Any]]) -> dict[str, float]:
    """Best peer over anybit, if there are peers: medians, best rounds, and CPU time; and the variants over FedAvg.

    With another checkout: this one's rows over its rows.
    """
    good = [row for row in table if "error" not in row]
    other = {row["name"].removesuffix(AGAINST): row for row in good if row["name"].endswith(AGAINST)}
    if other:
        return {f"{row['name']}: {key}": row[key] / other[row["name"]][key] for row in good if row["name"] in other
                for key in ("median", "best", "cpu_median")}
    mine = next(row for row in good if row["ours"])
    peers = [row for row in good if not row["ours"]]
    found = {key: min(p[key] for p in peers) / mine[key] for key in ("median", "best", "cpu_median") if peers}
    for row in good:
        variant = row["name"].removeprefix("anybit ").partition(",")[0]
        if row["ours"] and variant != "baseline":
            found |= {f"{variant}_over_baseline": row["best"] / mine["best"],
                      f"{variant}_over_baseline_cpu": row["cpu_median"] / mine["cpu_median"]}
    return found


def plot(model: str, table: list[dict[str, Any]], path: Path) -> None:
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5.5, 4.2), layout="constrained")
    rows = sorted((r for r in table if "error" not in r), key=lambda r: -float(r["median"]))
    axis.barh([r["name"] for r in rows], [r["median"] for r in rows],
              color=["#0b6e4f" if r["ours"] else "#9aa5b1" for r in rows])
    axis.set(title=model, xlabel="seconds per round (median)")
    axis.tick_params(labelsize=7)
    figure.savefig(path)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, required=True, help="where the peers' environments are or shall be")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--clients", type=int, default=10, help="clients a round")
    options.add_argument("--only", nargs="+", default=[""], help="contestants whose name has one of these texts")
    options.add_argument("--against", type=Path, help="another checkout of anybit to compete with, in place of the peers")
    options.add_argument("--models", nargs="+", default=["lenet", "resnet20", "lenet5"])
    options.add_argument("--out", type=Path, default=RESULTS / "peers-cpu")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    missing = {} if given.against else environments(given.folder)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for model in given.models:
        print(model, flush=True)
        table = compete(model, given, missing)
        ratio = ratios(table)
        print("  " + "  ".join(f"{k} {v:.2f}" for k, v in ratio.items()), flush=True)
        facts = {"date": time.strftime("%Y-%m-%d"), "rounds": given.rounds,
                 "work": f"{given.clients} clients × {IMAGES} images 3×32×32, batch 64, 1 epoch, SGD 0.05",
                 "environment": environment(), "packages": PACKAGES,
                 "models": {model: {"table": table, "ratio": ratio, "load": os.getloadavg()}}}
        given.out.with_name(f"{given.out.name}-{model}.json").write_text(json.dumps(facts, indent=1) + "\n")
        plot(model, table, given.out.with_name(f"{given.out.name}-{model}.svg"))


if __name__ == "__main__":
    main()
