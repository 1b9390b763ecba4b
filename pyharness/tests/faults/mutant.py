"""What a mutant is. The table: ``state``, ``rows`` and ``arithmetic``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyharness.plan import DEFAULT_PREFIX, Profile

NATIVE = Path(__file__).resolve().parents[3] / "native"
H_OUT, LOGITS, STATE = "h_out.npy", "logits.npy", "state.safetensors"
DIFFERS, FAILED, NONDETERMINISTIC = "differs", "failed", "nondeterministic"


@dataclass(frozen=True)
class Mutant:
    """One change of one file of native/, and the job of the real command that must turn red."""

    name: str
    breaks: str
    file: str  # under native/
    old: str  # occurs exactly once
    new: str
    job: str  # last part of the job's name, e.g. "rb8-keep1", "libs-mt3"
    shows: str  # the file whose bytes differ; failed: a part of the reason
    status: str = DIFFERS
    family: str = "hybrid"
    prefix: int | None = None  # None: the default
    profile: Profile = "quick"
    isa: str = "portable"

    @property
    def options(self) -> tuple[str, ...]:
        """Of run-ab: the job's kind and M, and the model."""
        kind = self.job.removeprefix("libs-").partition("-")[0]
        chosen = ("--m1",) if kind == "m1" else (f"--{kind[:2]}", kind[2:])
        if self.job.startswith("libs-"):
            chosen = ("--libs", *chosen)
        prefix = () if self.prefix is None else ("--prefix", str(self.prefix))
        profile = () if self.profile == "quick" else ("--profile", self.profile)
        return (
            *chosen,
            "--only",
            f"*/{self.job_name}",
            "--synthetic",
            self.family,
            *prefix,
            *profile,
            "--isa",
            self.isa,
        )

    @property
    def job_name(self) -> str:
        """With its prefix, as in the verdict."""
        return f"p{DEFAULT_PREFIX if self.prefix is None else self.prefix}/{self.job}"

    def problem(self) -> str:
        """Why the row does not fit the source, "" if it does."""
        text = (NATIVE / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            return f"{self.file} has the text {count} times, not once"
        return "" if self.new not in ("", self.old) or self.old else "the row changes nothing"
