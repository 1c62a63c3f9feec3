"""Products of integers by packed codes, two rows at a time, on Cortex-M: nothing is unpacked, and the sum of w·x is
factor · Σ code·x + low · Σ x."""

from __future__ import annotations

from typing import Literal, NamedTuple

from anybit.export.c.program import Program, source
from anybit.export.subject import QuantizedWeight
from anybit.quant.grid import Grid

BITS = (2, 4, 8)
"""Those of which a word of 32 bits holds a whole number, in halves that one mask reaches."""
HALVES = {"int8_t": "__sxtb16", "uint8_t": "__uxtb16"}
"""{type: the instruction of Cortex-M that makes 16 bits of every other byte}."""
_MOST = 2**31 - 1
_COLUMNS = {"conv": 2, "linear": 1}


class Product(NamedTuple):
    """A kernel, what it is given beside the arguments of all such kernels, and its scratch in bytes."""

    name: str
    argument: str
    scratch: int


def fits(quantized: QuantizedWeight, grid: Grid) -> bool:
    """Return True if a weight can be multiplied so: its bits, and no sum of codes or numbers can leave 32 bits."""
    factor, low, _ = quantized.integers()
    most = 2 * max(abs(float(grid.low)), abs(float(grid.high))) * (quantized.codes.size // len(quantized.codes))
    return quantized.bits in BITS and 2 * (factor * 2**quantized.bits + abs(low)) * most <= _MOST


def padding(quantized: QuantizedWeight) -> int:
    """Return the bytes behind the last row that make it whole words: rows are read in words."""
    size = quantized.codes.size // len(quantized.codes) * quantized.bits
    return -(-size // 32) * 4 - -(-size // 8) if quantized.bits in BITS else 0


def product(program: Program, layer: Literal["conv", "linear"], kind: str, quantized: QuantizedWeight, blocks: bool,
            inputs: int, **fields: str) -> Product:
    """Have the kernel of a layer on integers defined. blocks: so on Cortex-M; inputs: bytes of its quantized input."""
    if not blocks:
        name = program.use(f"{layer}_{fields['dot']}", f"{layer}_integer", type=kind, extra="", ignored="", **fields)
        return Product(name, "", inputs)
    bits, columns = quantized.bits, _COLUMNS[layer]
    codes, name = 32 // bits, f"{layer}_blocks_{kind}_{bits}"
    stride = codes // 2 * 4 * columns
    pairs = program.use(f"pairs_{kind}_{bits}", "pairs", type=kind, bits=str(bits), half=str(codes // 2),
                        step=str(min(codes // 2, 4)), halves=HALVES[kind])
    block = program.use(f"block_{bits}_{columns}", "block", stride=str(stride), **_block(bits, columns))
    other = source(f"{layer}_integer", name=name, type=kind, extra=", uint8_t *columns", ignored="    (void)columns;\n",
                   **fields)
    program.use(name, f"{layer}_blocks", type=kind, bits=str(bits), codes=str(codes), stride=str(stride), pairs=pairs,
                block=block, other=other, spare=fields.get("pair", fields["dot"]))
    at, words = -(-inputs // 4) * 4, -(-quantized.codes.size // len(quantized.codes) // codes)
    window = words * codes if layer == "conv" else 0
    return Product(name, f", (uint8_t *)({{q}}) + {at}", at + words * stride + window)


def _block(bits: int, columns: int) -> dict[str, str]:
    """Write the middle of a block: a pair of codes of either row, times the pair of every column."""
    steps = []
    for step in range(16 // bits):
        shift = f" >> {bits * step}" if step else ""
        steps += [f"memcpy(&x{n}, x + {4 * (columns * step + n)}, 4);" for n in range(columns)]
        for row, word in enumerate(("first", "second")):
            steps.append(f"codes = {word}{shift} & mask;")
            steps += [f"s{row}{n} = __smlad((int16x2_t)codes, (int16x2_t)x{n}, s{row}{n});" for n in range(columns)]
    sums = [f"s{row}{n}" for row in range(2) for n in range(columns)]
    return {"mask": f"0x{(2**bits - 1) * 0x10001:08X}u", "columns": "two columns" if columns == 2 else "one column",
            "zeros": ", ".join(f"{s} = 0" for s in sums), "names": ", ".join(["codes", *(f"x{n}" for n in range(columns))]),
            "steps": "\n".join(f"        {s}" for s in steps),
            "results": "\n".join(f"    sums[{i}] = {s};" for i, s in enumerate(sums))}
