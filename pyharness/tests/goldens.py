"""The golden models as checkpoint folders: ``golden(name)``.

The weights are stored compressed. They are unpacked once, under build/golden, and checked against
their SHA-256; ``python -m pyharness.tests.goldens`` does it for all and prints where they are.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
STORED = Path(__file__).resolve().parent / "golden"
WEIGHTS = "model.safetensors"
SHA256 = {
    "tiny-hybrid": "53f7b3a81f95cc083d076cb08165653ca4e0754e750ce7dade59c38de9738242",
    "tiny-gdn": "c89b09c8746bacc7ab3540f6b92816fc87d9c43da22aefa0bc16c40828eca28c",
    "tiny-attn": "5081bea941df7d0eb31054e4306466c98836e63af7102362b3a0a49fffe92c21",
}
NAMES = tuple(SHA256)
LOGITS_BOUND = 5e-4
HIDDEN_BOUND = 2e-4
STATE_BOUND = 5e-5


@cache
def golden(name: str) -> Path:
    """A folder with the checkpoint (config.json, model.safetensors) and the tokens of a model."""
    folder = ROOT / "build" / "golden" / name
    weights = folder / WEIGHTS
    if not (weights.exists() and _sha256(weights.read_bytes()) == SHA256[name]):
        data = lzma.decompress((STORED / name / f"{WEIGHTS}.xz").read_bytes())
        if _sha256(data) != SHA256[name]:
            raise AssertionError(f"{STORED / name / WEIGHTS}.xz: not the golden weights")
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("config.json", "tokens.npy", "tokens_long.npy"):
            shutil.copyfile(STORED / name / file, folder / file)
        _publish(weights, data)
    return folder


def array(name: str, file: str) -> np.ndarray:
    """One golden array, e.g. ``array("tiny-gdn", "logits_f64")``."""
    loaded: np.ndarray = np.load(STORED / name / f"{file}.npy")
    return loaded


def _publish(path: Path, data: bytes) -> None:
    """Whole or not at all: several test processes may do this at once."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".tmp-", delete=False) as file:
        file.write(data)
    os.replace(file.name, path)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    for golden_name in NAMES:
        print(golden(golden_name))
