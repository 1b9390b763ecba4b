"""All mutants, and what became of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyharness.errors import Exit
from pyharness.tests.faults import arithmetic, rows, state
from pyharness.tests.faults.mutant import DIFFERS, Mutant
from pyharness.tests.faults.workshop import BuildFailed, Workshop

MUTANTS: tuple[Mutant, ...] = (*state.MUTANTS, *rows.MUTANTS, *arithmetic.MUTANTS)
ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Outcome:
    """``killed``: the job is red in the way that the row says. ``told``: the job's line."""

    killed: bool
    told: str


class Bench:
    """The unchanged library in an archive of its own, and mutants held against it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shop = Workshop(folder / "shop")
        self._where = ("--archive", str(folder / "archive"), "--pin", str(folder / "archive.pin"))
        added = (
            "archive",
            "add",
            str(self.shop.unchanged),
            "--label",
            "unchanged",
            "--why",
            "test",
        )
        code, said = self.command(*added, *self._where)
        assert code == Exit.SAME, said

    def try_mutant(self, mutant: Mutant) -> Outcome:
        try:
            library = self.shop.build(mutant, self.folder / mutant.name)
        except BuildFailed as e:
            return Outcome(False, f"does not build: {e}")
        code, told = self.suite(mutant.name, library, mutant.options)
        return judge(mutant, code, told)

    def unchanged_is_green(self, options: tuple[str, ...], name: str) -> Outcome:
        """Without a mutant the same command must be green: else red would mean nothing."""
        options = (*options, "--same-library")
        code, told = self.suite(name, self.shop.unchanged, options)
        return Outcome(code == Exit.SAME, str(told.get("summary", told)))

    def suite(
        self, name: str, library: Path, options: tuple[str, ...]
    ) -> tuple[int, dict[str, Any]]:
        """Exit code and JSON document of the real command."""
        place = self.folder / "runs" / name
        document = self.folder / f"{name}.json"
        code, said = self.command(
            *options, "--no-trace", "--candidate", str(library), "--out", str(place),
            "--json", str(document), *self._where,
        )  # fmt: skip
        if not document.exists():
            return code, {
                "summary": said.strip().splitlines()[-1] if said.strip() else "",
                "jobs": [],
            }
        whole: dict[str, Any] = json.loads(document.read_bytes())
        return code, whole

    def command(self, *arguments: str) -> tuple[int, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
        done = subprocess.run(
            [sys.executable, "-m", "pyharness", *arguments],
            cwd=ROOT, env=kept, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


def judge(mutant: Mutant, code: int, document: dict[str, Any]) -> Outcome:
    found = [job for job in document["jobs"] if job["id"].endswith(f"/{mutant.job_name}")]
    if len(found) != 1:
        return Outcome(False, f"exit {code}: {document['summary']}; no job {mutant.job}")
    (job,) = found
    files = [d["file"] for d in (job["comparison"] or {}).get("differences", ())]
    shown = mutant.shows in files if mutant.status == DIFFERS else mutant.shows in job["reason"]
    told = f"{job['status']} {', '.join(files) or job['reason']}".strip()
    return Outcome(code != Exit.SAME and job["status"] == mutant.status and shown, told)
