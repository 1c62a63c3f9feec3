"""How far engines and numbers of threads are apart on the model of the tests, as max |a − b| / max |w|.

    python -m benchmarks.determinism results/reliability/determinism.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from anybit.environment import environment
from tests.reliability.test_determinism import VARIANTS, apart, drawn, trained


def main(out: Path) -> None:
    examples = drawn()
    found = {}
    for rounds in (1, 4, 10):
        for variant in VARIANTS:
            reference = trained(examples, variant, "sequential", 1, rounds)
            found[f"{variant}, {rounds} rounds"] = {
                "stacked": apart(trained(examples, variant, "stacked", 1, rounds), reference),
                "two threads": apart(trained(examples, variant, "sequential", 2, rounds), reference)}
    out.write_text(json.dumps({"environment": environment(), "apart": found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
