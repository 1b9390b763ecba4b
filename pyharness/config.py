"""Settings: defaults < ``[tool.vllm-ab]`` of pyproject.toml < ``VLLM_AB_*`` < options. Each value
knows its source.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyharness.errors import InputError, UsageError
from pyharness.values import BACKENDS

PREFIX = "VLLM_AB_"
TABLE = "vllm-ab"
BUILT = "build/{}/libvllm_cuda.so"  # of a backend
ISA_VARIABLE = "VLLM_CUDA_CPU_ISA"  # of the library; counts where the harness is told nothing

# name -> (type, default, meaning). Paths are relative to the project's root.
KEYS: dict[str, tuple[type, Any, str]] = {
    "archive": (Path, "archive", "folder of the archive"),
    "pin": (Path, ".ci/archive.pin", "checkpoint of the archive's log, kept outside of it"),
    "backend": (str, "cpu", "of the libraries that are not named: cpu or cuda"),
    "candidate": (Path, BUILT.format("cpu"), "library under test; by default that of the backend"),
    "baseline": (str, "", "tag, digest or path of the baseline; empty: the archive's own choice"),
    "out": (Path, "abruns", "folder that gets one folder for each run"),
    "threads": (int, 0, "threads of a CPU library; 0: chosen by the harness"),
    "timeout": (float, 600.0, "seconds that one arm may take"),
    "workers": (int, 0, "arms that run at the same time; 0: chosen by the harness"),
    "isa": (str, "", "VLLM_CUDA_CPU_ISA of the workers: portable, avx2 or avx512"),
    "seed": (int, 0, "seed of the synthetic models"),
}
MOST = {"threads": 1024, "workers": 64}  # of threads: the most that the library takes
CHOICES = {"isa": ("portable", "avx2", "avx512"), "backend": BACKENDS}  # an empty isa is none


@dataclass(frozen=True)
class Setting:
    value: Any
    source: str


@dataclass(frozen=True)
class Settings:
    """Every key of ``KEYS`` with its value and where it came from."""

    root: Path
    values: dict[str, Setting]

    def __getitem__(self, key: str) -> Any:
        return self.values[key].value

    @property
    def built(self) -> Path:
        """Where the build puts the library of the backend: the candidate when none is named."""
        return self.root / BUILT.format(self["backend"])


def project_root(start: Path | None = None) -> Path:
    """The nearest folder upwards whose pyproject.toml has the harness's table or stands beside an
    archive; else the checkout.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "pyproject.toml").is_file() and (
            (folder / "archive/oci-layout").is_file()
            or _table(folder / "pyproject.toml") is not None
        ):
            return folder
    return Path(__file__).resolve().parent.parent


def resolve(
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    start: Path | None = None,
) -> Settings:
    """Settings from all four sources; an unknown name in any of them is an error."""
    environment = os.environ if environment is None else environment
    root = project_root(start)
    values = {
        k: Setting(_convert(k, d, root, "default"), "default") for k, (_, d, _) in KEYS.items()
    }
    file = root / "pyproject.toml"
    for key, value in (_table(file) or {}).items():
        _known(key, f"{file}: [tool.{TABLE}]")
        values[key] = Setting(_convert(key, value, root, str(file)), "pyproject.toml")
    for name in sorted(n for n in environment if n.startswith(PREFIX)):
        key = name.removeprefix(PREFIX).lower()
        _known(key, f"environment variable {name}")
        values[key] = Setting(_convert(key, environment[name], root, name), name)
    for key, value in (options or {}).items():
        if value is not None:
            _known(key, "options")
            values[key] = Setting(_convert(key, value, Path.cwd(), f"--{key}"), f"--{key}")
    if (isa := environment.get(ISA_VARIABLE)) and not values["isa"].value:
        values["isa"] = Setting(_convert("isa", isa, root, ISA_VARIABLE), ISA_VARIABLE)
    settings = Settings(root, values)
    if values["candidate"].source == "default":
        values["candidate"] = Setting(settings.built, values["backend"].source)
    return settings


def _known(key: str, where: str) -> None:
    if key not in KEYS:
        raise UsageError(f"{where}: unknown setting {key!r}; known are {', '.join(KEYS)}")


def _convert(key: str, value: Any, base: Path, where: str) -> Any:
    kind = KEYS[key][0]
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Path)):
        raise UsageError(f"{where}: {key} cannot be {value!r}")
    try:
        if kind is Path:
            path = Path(value) if isinstance(value, (str, Path)) else None
            if path is None or str(path) in ("", "."):
                raise ValueError
            made = base / path.expanduser()
            if b"\0" in str(made).encode():  # ValueError too for a name that no record can hold
                raise ValueError
            return made
        made = kind(value)
        if kind is int and isinstance(value, float):
            raise ValueError
    except (
        ValueError,
        OverflowError,
        RuntimeError,
    ):  # RuntimeError: ~ of a user who does not exist
        name = {Path: "a path", int: "a whole number", float: "a number"}.get(kind, "text")
        raise UsageError(f"{where}: {key} must be {name}, not {value!r}") from None
    if key in CHOICES and made not in CHOICES[key] and (key, made) != ("isa", ""):
        known = ", ".join(CHOICES[key])
        raise UsageError(f"{where}: {key} must be one of {known}, not {made!r}")
    if key == "timeout" and not 0 < made < 1e7:
        raise UsageError(f"{where}: timeout must be a number of seconds above 0, not {value!r}")
    if key in MOST and made > MOST[key]:
        raise UsageError(f"{where}: {key} must be 0 to {MOST[key]}, not {value!r}")
    if kind is int and (made < 0 or made > 2**63 - 1):
        raise UsageError(f"{where}: {key} cannot be {value!r}")
    return made


def _table(file: Path) -> dict[str, Any] | None:
    """``[tool.vllm-ab]``, or None where there is none."""
    try:
        tool = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as e:
        raise InputError(f"{file}: {' '.join(str(e).split())}") from None
    table = tool.get(TABLE) if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise InputError(f"{file}: [tool.{TABLE}] is not a table")
    return table
