"""The frozen values that the stages hand to each other; each can be written as JSON and read back.

``to_json`` / ``from_json`` work on every value here: a dataclass is an object, a tuple an array, an
enum its value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import types
import typing
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache
from typing import Any, Literal

SHA256_OF_NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, order=True)
class Digest:
    """A SHA-256. The digest of no bytes is refused by name: it is what hashing a file at its end
    gives.
    """

    hex: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.hex):
            raise ValueError(f"not a SHA-256 digest: {self.hex!r}")
        if self.hex == SHA256_OF_NOTHING:
            raise ValueError("this is the SHA-256 of no bytes at all")

    @classmethod
    def parse(cls, text: str) -> Digest:
        """From ``sha256:<hex>`` or bare hex."""
        return cls(text.removeprefix("sha256:"))

    def __str__(self) -> str:
        return f"sha256:{self.hex}"

    @property
    def short(self) -> str:
        return self.hex[:12]


Arm = Literal["baseline", "candidate"]
BACKENDS = ("cpu", "cuda")  # each has a baseline of its own in the archive
NOT_RUN = "not run: "  # how the reason begins of what was never tried, of an arm and of a job


@dataclass(frozen=True)
class ModelSpec:
    """Which weights. ``synthetic``: family, size, seed. ``checkpoint`` (Hugging Face directory) and
    ``pack``: path.
    """

    kind: Literal["synthetic", "checkpoint", "pack"]
    family: str = ""  # synthetic: hybrid | gdn | attn
    size: str = ""  # synthetic: tiny | mid | 27b
    seed: int = 0
    path: str = ""  # checkpoint or pack: absolute path
    context: int = 0  # positions of the attention cache; 0: as many as the script needs

    @property
    def name(self) -> str:
        return f"synthetic {self.family} {self.size}" if self.kind == "synthetic" else self.path

    @property
    def slug(self) -> str:
        """A short name for job ids and folders."""
        if self.kind == "synthetic":
            seed = f"-s{self.seed}" if self.seed else ""
            return f"{self.family}-{self.size}{seed}"
        stem = self.path.rstrip("/").rsplit("/", 1)[-1]
        return re.sub(r"[^A-Za-z0-9._-]+", "_", stem).strip("._") or "model"


@dataclass(frozen=True)
class Op:
    """One call of an arm's script. ``record`` appends its rows to h_out.npy and logits.npy.

    step: one single step per token. step_m: all tokens in one M-row step, of which only the first
    ``number`` rows are recorded (0: all). mark, rollback, reset: no tokens.
    rollback_to: keep ``number`` rows. poison: fill unused memory with the 32-bit word ``number``.
    refused: the call ``what``, which the library must refuse and which must change nothing.
    """

    kind: Literal["step", "step_m", "mark", "rollback", "rollback_to", "poison", "reset", "refused"]
    tokens: tuple[int, ...] = ()
    record: bool = False
    number: int = 0
    what: Literal["", "step", "step_m", "mark", "rollback", "rollback_to"] = ""

    @property
    def recorded(self) -> tuple[int, ...]:
        """The tokens whose rows are recorded."""
        return self.tokens[: self.number or None] if self.record else ()


@dataclass(frozen=True)
class ArmPlan:
    """What one worker process does: from reset, run the script, write the three files."""

    arm: Arm  # whose library
    role: str  # "arm", "again" (the same once more, another process) or "control" (must differ)
    model: ModelSpec
    script: tuple[Op, ...]
    mmax: int = 0  # VLLM_CUDA_Q35_MM for the worker; 0: unset
    threads: int = 0  # CPU backend; 0: one per core
    # further variables for the worker, e.g. VLLM_CUDA_CPU_ISA
    environment: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 600.0
    alone: bool = False  # nothing else runs in its process before or after it


@dataclass(frozen=True)
class FileFact:
    name: str
    sha256: Digest
    size_bytes: int


def shown_revision(revision: str, dirty: bool) -> str:
    """For people, "" where there is none."""
    return revision[:12] + ("-dirty" if dirty else "")


@dataclass(frozen=True)
class LibraryFacts:
    """What a worker saw of the library it loaded."""

    sha256: Digest
    size_bytes: int
    abi_version: int
    build_info: dict[str, Any]
    symbols: tuple[str, ...]  # bound entries
    missing: tuple[str, ...]  # optional entries that the library lacks
    mapped: str = ""  # the file the operating system really mapped

    @property
    def dirty(self) -> bool:
        """Its sources had changes that its revision does not hold."""
        return self.build_info.get("dirty") is True

    @property
    def revision(self) -> str:
        """As it is shown to people."""
        return shown_revision(str(self.build_info.get("revision", "")), self.dirty)


@dataclass(frozen=True)
class ArmResult:
    """How an arm ended. Only ``done`` has files; nothing else may be compared."""

    status: Literal["done", "unsupported", "failed"]
    reason: str = ""  # one line: missing symbol's name, or what went wrong
    # unsupported: the optional entries the script needs and the library lacks
    missing: tuple[str, ...] = ()
    files: tuple[FileFact, ...] = ()  # h_out.npy, logits.npy, state.safetensors
    rows: int = 0
    library: LibraryFacts | None = None
    step_ns: tuple[int, ...] = ()  # wall time of each call of the script, in order
    wall_s: float = 0.0
    row_digests: str = ""  # of every computed row, recorded or not: see rows.py; "": not given
    timed_out: bool = False


@dataclass(frozen=True)
class Difference:
    """The first differing element of one file, and how many differ. Words are hexadecimal bit
    patterns.
    """

    file: str
    tensor: str  # state.safetensors: the tensor's name; else ""
    index: tuple[int, ...]  # coordinates of the first differing element, e.g. (row, column)
    baseline_bits: str
    candidate_bits: str
    baseline_value: str
    candidate_value: str
    different: int  # elements that differ in this file
    total: int  # elements in this file
    note: str = ""  # e.g. shapes or sizes differ


@dataclass(frozen=True)
class Comparison:
    """memcmp of the three files of two arms."""

    equal: bool
    bytes_compared: int
    differences: tuple[Difference, ...] = ()


class JobStatus(StrEnum):
    SAME = "same"
    DIFFERS = "differs"
    UNSUPPORTED = "unsupported"
    NONDETERMINISTIC = "nondeterministic"
    INDISTINCT = "indistinct"
    FAILED = "failed"


# ---- JSON ----------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """A value made of dicts, lists, strings, numbers and None only."""
    if isinstance(value, Digest):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def from_json(kind: Any, data: Any) -> Any:
    """The inverse of ``to_json`` for a type of this module; ValueError names what is off."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if kind is Digest:
        if not isinstance(data, str):
            raise ValueError(f"expected a digest, got {data!r}")
        return Digest.parse(data)
    if origin is Literal:
        if data not in args:
            raise ValueError(f"expected one of {args}, got {data!r}")
        return data
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        return from_json(next(a for a in args if a is not type(None)), data)
    if origin is tuple:
        if not isinstance(data, list):
            raise ValueError(f"expected an array, got {data!r}")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(from_json(args[0], v) for v in data)
        if len(args) != len(data):
            raise ValueError(f"expected {len(args)} items, got {len(data)}")
        return tuple(from_json(a, v) for a, v in zip(args, data, strict=True))
    if origin is dict:
        if not isinstance(data, dict):
            raise ValueError(f"expected an object, got {data!r}")
        return {from_json(args[0], k): from_json(args[1], v) for k, v in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if dataclasses.is_dataclass(kind):
        return _dataclass_from_json(kind, data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError:
            raise ValueError("the number is too large") from None
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise ValueError(f"expected {kind.__name__}, got {data!r}")
    return data


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _dataclass_from_json(kind: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"expected an object for {kind.__name__}, got {data!r}")
    hints, made = _hints(kind), {}
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if unknown := sorted(set(data) - set(fields)):
        raise ValueError(f"{kind.__name__}: unknown field {unknown[0]!r}")
    for name, f in fields.items():
        if name in data:
            try:
                made[name] = from_json(hints[name], data[name])
            except ValueError as e:
                raise ValueError(f"{kind.__name__}.{name}: {e}") from None
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ValueError(f"{kind.__name__}: field {name!r} is missing")
    return kind(**made)
