"""export: low-bit artifacts of a trained run, verified."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from anybit.cli.console import Debug, Import, Json, choice, print_json, print_lines, print_table, say, step_rule
from anybit.cli.inspect import warn_of_steps
from anybit.cli.training import RunPath
from anybit.errors import ConfigError

if TYPE_CHECKING:
    from anybit.export.artifact import Runtime
    from anybit.export.bench import Cost
    from anybit.export.choosing import Exports
    from anybit.export.exporting import Options
    from anybit.export.fleet import Fleet
    from anybit.quant.grid import Width

Wanted = list[tuple["Width", "Runtime"]]
Widths = Annotated[list[str] | None, typer.Option(
    help="W4, W4A8, WA8, FP32; repeat for more. Default: what the run quantizes, at 8, 6, 4, 3 and 2 bits.")]
FleetFile = Annotated[Path | None, typer.Option(
    help="A TOML file of [[device]] tables: name, width, runtime, count, or limits that choose the width.")]
MinAccuracy = Annotated[float | None, typer.Option(
    help="Write no width that scores worse. Default: half of what full precision gains over chance; 0: write all.")]
Opset = Annotated[int, typer.Option(
    help="ONNX opset: 21 stores 4 bits natively, 25 also 2 bits; 18 to 20 use bit streams, for older runtimes.")]
Weights = Annotated[str, typer.Option(help="Type of weights in integer kernels: uint8, int8 (fast on x86), or auto.")]
Products = Annotated[str, typer.Option(
    help="standard, or matmulnbits: linear layers with 4-bit weights stay packed in memory (ONNX Runtime only).")]
Exact = Annotated[bool, typer.Option("--exact", help="Do not round outputs of convolutions to 8 bits: exact, but slower.")]
StepRule = Annotated[str | None, typer.Option(
    help="Step sizes by table, rule, mse, minmax or cover; default: as in the run.")]
Calibrate = Annotated[bool, typer.Option("--calibrate", help="Measure activation step sizes on training images.")]
NoVerify = Annotated[bool, typer.Option("--no-verify", help="Write C files without compiling and running them.")]
Bench = Annotated[bool, typer.Option("--bench", help="Measure load time, latency and memory.")]
Web = Annotated[bool, typer.Option(
    "--web", help="Also write web/: a page that runs these widths in a browser; needs clang, lld and node.")]
Licence = Annotated[str, typer.Option(help="Licence of the model, for its card: a Hugging Face id.")]
Out = Annotated[Path | None, typer.Option(help="Where to write; default: export/ in the run.")]


def export(path: RunPath, width: Widths = None, fleet: FleetFile = None,
           runtime: Annotated[str, typer.Option(help="onnx, executorch, archive or c.")] = "onnx", opset: Opset = 21,
           operands: Weights = "auto", operators: Products = "standard", exact: Exact = False, steps: StepRule = None,
           calibrate: Calibrate = False, min_accuracy: MinAccuracy = None, no_verify: NoVerify = False, bench: Bench = False,
           web: Web = False, out: Out = None,
           licence: Licence = "other", imports: Import = None, json: Json = False, debug: Debug = False) -> None:
    """Write a trained run as low-bit artifacts, run them in their runtime and compare with the evaluation."""
    from anybit.export.bench import costs as measure
    from anybit.export.choosing import export_fleet, export_widths
    from anybit.export.exporting import Exporter
    from anybit.export.fleet import read_fleet
    from anybit.export.recorded import check_recorded
    from anybit.export.report import record_page, refuse, write_report
    from anybit.export.subject import from_run
    from anybit.files.holding import own_folder
    from anybit.files.verification import PAGE
    from anybit.quant.grid import FLOAT
    from anybit.training.run import Run

    folder = out or own_folder(path / "export")
    devices = read_fleet(fleet) if fleet else None
    run = Run.load(path, trusted=imports or [])
    own = _own_widths(run.evaluation["sites"], runtime)
    wanted = _wanted(own, width, devices, runtime)
    options = _options(opset, operands, exact, licence, not no_verify, min_accuracy, operators)
    if no_verify and web:
        raise ConfigError("--no-verify: not with --web; every module of the page is run")
    if no_verify and any(r != "c" for _, r in wanted):
        raise ConfigError("--no-verify: for --runtime c alone; other artifacts are always run")
    subject = from_run(run, step_rule(steps), calibrate, any(w.activations != FLOAT for w, _ in wanted))
    if steps in (None, run.evaluation["own"]):
        check_recorded(subject, run, (w for w, _ in wanted))
    if web:
        from anybit.export.web import check_web, write_web

        check_web(subject)
    exporter = Exporter(subject, folder, options)
    exports = (export_fleet(exporter, devices, own) if devices
               else export_widths(exporter, [w for w, _ in wanted], wanted[0][1]))
    artifacts = list(exports.artifacts.values())
    costs: dict[str, Cost] = {}
    if bench:
        onnx = (a.file for a in artifacts if a.runtime == "onnx" and not a.rejected and a.file != exporter.fp32.name)
        costs = measure([exporter.folder / file for file in (exporter.fp32.name, *onnx)])
    report = write_report(exporter, exports.artifacts, exports.fleet, costs, exports.refused)
    if web:
        written = {a.width for a in artifacts if not a.rejected}
        page = write_web(subject, own_folder(folder / PAGE), [w for w, _ in wanted if str(w) in written])
        report = record_page(folder, page)
        say(f"web page: {page} (serve it: python -m http.server -d {page})")
    if json:
        print_json(report)
    else:
        _print(exports, costs, report)
    warn_of_steps(run, steps, {a.width: a.verdict.artifact for a in artifacts})
    if exporter.floor.warning:
        say(f"warning: {exporter.floor.warning}")
    say(f"artifacts: {exporter.folder}")
    refuse(artifacts)
    if width or devices:
        exports.raise_refused()
    for why in exports.refused.values():
        say(why)


def _own_widths(sites: Any, runtime: str) -> list[Width]:
    """Return the widths of a run whose user names none."""
    from anybit.quant.grid import SiteKinds, Width

    kinds: SiteKinds = "WA" if runtime == "executorch" or sites == "A" else sites
    return [Width.of(kinds, b) for b in ((8,) if runtime == "executorch" else (8, 6, 4, 3, 2))]


def _wanted(own: list[Width], width: list[str] | None, devices: Fleet | None, runtime: str) -> Wanted:
    """List what may be exported; a fleet's device gets one of its candidates."""
    from anybit.export.artifact import Runtime
    from anybit.export.choosing import candidates
    from anybit.export.exporting import parse_widths

    chosen = choice("--runtime", runtime, get_args(Runtime))
    if devices is not None:
        if width:
            raise ConfigError("--width and --fleet: the fleet file sets the widths; give one of the two")
        return list(dict.fromkeys((w, d.runtime) for d in devices.device for w in candidates(d, own)))
    return [(w, chosen) for w in (parse_widths(width) if width else own)]


def _options(opset: int, operands: str, exact: bool, licence: str, verify: bool, min_accuracy: float | None,
             operators: str) -> Options:
    from anybit.export.exporting import Operands, Operators, Options
    from anybit.export.graph import check_opset

    return Options(check_opset(opset), choice("--operands", operands, get_args(Operands)), exact, licence, verify,
                   min_accuracy, choice("--operators", operators, get_args(Operators)))


def _print(exports: Exports, costs: dict[str, Cost], report: dict[str, Any]) -> None:
    from anybit.export.artifact import no_smaller
    from anybit.export.report import artifact_rows, cost_rows, fleet_rows, footprint_rows
    from anybit.federated.metrics import meaning_in

    metric, artifacts = meaning_in(report), list(exports.artifacts.values())
    print_table(*artifact_rows(artifacts, metric))
    if any(a.footprint for a in artifacts):
        print_table(*footprint_rows(artifacts))
    if exports.fleet is not None:
        print_table(*fleet_rows(exports.fleet, exports.artifacts, metric))
        print_lines(f"expected over the fleet: {metric.text(report['fleet']['expected'])} {metric.head}")
    if costs:
        print_table(*cost_rows(costs))
    for artifact in artifacts:
        if artifact.added:
            say(f"{artifact.width}: added beyond training, here and in the reference: {', '.join(artifact.added)}")
        for layer, why in artifact.in_float.items():
            say(f"{artifact.width}: layer '{layer}' is computed in float: {why}")
        if artifact.warning:
            say(f"warning: {artifact.warning}: its {metric.name} is {metric.text(artifact.verdict.artifact)}, in full "
                f"precision {metric.text(report['full_precision'])}")
    for words in dict.fromkeys(words for a in artifacts for words in a.known_wrong):
        say(f"warning: {', '.join(a.width for a in artifacts if words in a.known_wrong)}: {words}")
    for words in no_smaller(artifacts):
        say(words)
    say(f"step sizes: {report['steps']}")
