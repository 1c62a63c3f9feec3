"""Small data sets in the hub's layout, and a cache of their own for every test."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "cache"
    monkeypatch.setenv("ANYBIT_DATA", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return home


def png(array: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def write_parquet() -> Write:
    """Write one parquet file as the hub has it: PNG bytes in a struct, features in the schema's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(path: Path, image: str, images: Sequence[np.ndarray], names: dict[str, list[str]],
              **columns: Any) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = pa.array([{"bytes": png(x), "path": None} for x in images],
                        pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        arrays = {key: pa.array(list(values)) for key, values in columns.items()}
        features: dict[str, Any] = {image: {"_type": "Image"}}
        for key, array in arrays.items():
            features[key] = {"names": names[key], "_type": "ClassLabel"} if key in names else \
                {"dtype": str(array.type), "_type": "Value"}
        table = pa.table({image: rows, **arrays})
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        pq.write_table(table, path, row_group_size=64)
        return path

    return write


@pytest.fixture
def hub(tmp_path: Path, write_parquet: Write) -> Path:
    """owner/shapes: colour images with fine and coarse labels; flwrlabs/femnist: 6 writers with 4 … 40 grey images."""
    draw, root = np.random.default_rng(0), tmp_path / "hub"
    for split, count in (("train", 60), ("test", 24)):
        labels = np.arange(count) % 6
        write_parquet(root / "owner/shapes/data" / f"{split}-00000-of-00001.parquet", "picture",
                      draw.integers(256, size=(count, 8, 8, 3), dtype=np.uint8),
                      {"kind": list("abcdef"), "family": ["abc", "def"]}, kind=labels, family=labels // 3)
    sizes = [4, 10, 20, 30, 40, 12]
    writers = np.repeat([f"f{i:04d}" for i in range(6)], sizes)
    characters = np.arange(sum(sizes)) % 62
    write_parquet(root / "flwrlabs/femnist/data/train-00000-of-00001.parquet", "image",
                  draw.integers(256, size=(sum(sizes), 28, 28), dtype=np.uint8),
                  {"character": [chr(48 + i) for i in range(62)]}, writer_id=writers.tolist(),
                  hsf_id=np.zeros(sum(sizes), int), character=characters)
    return root
