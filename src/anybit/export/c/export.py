"""The export to C: written, compiled on this machine, run on the test set and compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from anybit.export.artifact import Artifact, Footprint, LayerCost
from anybit.export.c.host import run
from anybit.export.c.program import Program, named
from anybit.export.c.trace import build, traced
from anybit.export.c.write import Source, write
from anybit.export.reference import reference
from anybit.export.subject import Subject, Trace
from anybit.export.verify import unverified, verdict
from anybit.files.writing import write_bytes
from anybit.inputs import leaves
from anybit.quant.grid import Width


@dataclass(frozen=True)
class CExporter:
    """A writer of C files of one subject; the network is traced once."""

    subject: Subject
    verify: bool = True

    @cached_property
    def trace(self) -> Trace:
        """The network, traced once for all widths."""
        return traced(self.subject)

    @cached_property
    def examples(self) -> Tensor:
        """The test set, as the model sees it."""
        batches = self.subject.test_batches(self.subject.evaluator.batch_size)
        return torch.cat([next(iter(leaves(x).values())) for x in batches])

    def written(self, path: Path, width: Width) -> tuple[Program, Source]:
        """Write PATH and its header, and nothing else."""
        program, header = build(self.subject, *self.trace, width), path.with_suffix(".h")
        text = write(program, named(path), header.name)
        for file, content in ((path, text.code), (header, text.header)):
            write_bytes(file, content.encode("ascii"))
        return program, text

    def export(self, path: Path, width: Width) -> Artifact:
        """Write PATH and its header; compile and run them unless `verify` is off."""
        subject, header, (program, text) = self.subject, path.with_suffix(".h"), self.written(path, width)
        plain = reference(subject, width)
        judged, size, spent = unverified(subject, plain), None, list[float]()
        if self.verify:
            try:
                result, size, spent = run(path, named(path), self.examples, program.output.shape[1:], len(text.layers))
            except BaseException:
                for file in (path, header):  # nobody ran them
                    file.unlink(missing_ok=True)
                raise
            judged = verdict(subject, width, plain, plain, result)
        macs = {layer.name: layer.macs for layer in program.layers}
        weights = {layer.name: layer.weight_bytes for layer in program.layers}
        layers = [LayerCost(name, weights.get(name, 0), ram, macs.get(name, 0), round(spent[i], 2) if spent else None)
                  for i, (name, ram) in enumerate(text.layers)]
        footprint = Footprint(size.flash if size else None, text.weight_bytes, text.ram_bytes, text.arena_bytes, macs,
                              layers)
        kernels = Counter("integer" for layer in program.layers if layer.integer)
        counts = Counter[str]()
        for weight in program.weights.values():
            counts[str(weight.bits)] += weight.codes.size
        stored = {str(w.bits): f"{w.bits}-bit rows" for w in program.weights.values()}
        return Artifact(path.name, str(width), "c", footprint.flash or text.weight_bytes, subject.float_bytes, dict(counts),
                        judged, stored, dict(kernels), [], program.in_float, subject.untrained(width), None,
                        [header.name], footprint)
