"""Rules: what was observed -> a verdict for each job and one exit code for the run. No effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyharness.differences.findings import Divergence, Explanation
from pyharness.errors import Exit
from pyharness.plan import Job
from pyharness.values import NOT_RUN, ArmResult, Comparison, FileFact, JobStatus

# Only a process that outlived its arm does that, or somebody else. Digests are taken when an arm
# ends and bytes are compared later: both must say the same.
_CHANGED = "changed between their hashing and their comparison"


@dataclass(frozen=True)
class RowChange:
    """A control against the candidate: which recorded rows differ, and whether the states do."""

    h_out: tuple[int, ...]
    logits: tuple[int, ...]
    state_differs: bool


@dataclass(frozen=True)
class Facts:
    """What one job observed. None: not run or not compared, an arm before it did not end well."""

    baseline: ArmResult
    candidate: ArmResult
    baseline_again: ArmResult | None = None
    candidate_again: ArmResult | None = None
    control: ArmResult | None = None
    baseline_repeat: Comparison | None = None  # baseline against baseline_again
    candidate_repeat: Comparison | None = None
    comparison: Comparison | None = None  # baseline against candidate
    change: RowChange | None = None  # control against candidate
    unlike: str = ""  # rows beside the recorded ones that differ for the same tokens
    twins: str = ""  # an arm whose dump holds one layer's state twice


@dataclass(frozen=True)
class JobVerdict:
    id: str
    status: JobStatus
    reason: str  # one line, "" when the status says it all
    requested: bool  # asked for by name, or the candidate lacks what the baseline has
    comparison: Comparison | None = None  # only where it may be told: both arms repeat themselves
    missing: tuple[str, ...] = ()  # unsupported: entries that a library lacks
    control: str = ""  # what the control changed and what that did
    # beside the verdict, never instead of it
    divergence: Divergence | None = None
    explanations: tuple[Explanation, ...] = ()  # one for each file that differs

    @property
    def skipped(self) -> bool:
        """Listed as unsupported, and no failure of the run."""
        return self.status is JobStatus.UNSUPPORTED and not self.requested


@dataclass(frozen=True)
class Verdict:
    """The whole run."""

    exit_code: int
    summary: str
    jobs: tuple[JobVerdict, ...]


def judge(job: Job, facts: Facts) -> JobVerdict:
    """The first rule that applies decides; the order of the rules is the order of the doubts."""
    status, reason = _status(job, facts)
    lost = _lost(facts) if status is JobStatus.UNSUPPORTED else ()
    if lost:
        reason = f"the candidate lacks {', '.join(lost)}, which the baseline has"
    told = status in (JobStatus.SAME, JobStatus.DIFFERS, JobStatus.INDISTINCT)
    missing = tuple(dict.fromkeys((*facts.baseline.missing, *facts.candidate.missing)))
    return JobVerdict(
        id=job.id,
        status=status,
        reason=reason,
        requested=job.requested or bool(lost),  # a candidate that can do less is no success
        comparison=facts.comparison if told else None,
        missing=missing if status is JobStatus.UNSUPPORTED else (),
        control=_control_line(job, facts) if told else "",
    )


def _status(job: Job, facts: Facts) -> tuple[JobStatus, str]:
    arms = (
        ("baseline", facts.baseline, facts.baseline_again, facts.baseline_repeat),
        ("candidate", facts.candidate, facts.candidate_again, facts.candidate_repeat),
    )
    # 1. An arm that did not run has nothing to compare; what it could not do comes before what it
    # did wrong.
    for name, arm, _, _ in arms:
        if arm.status == "failed":
            return JobStatus.FAILED, _said_of(name, arm.reason)
    for name, arm, _, _ in arms:
        if arm.status == "unsupported" and not arm.missing:
            return JobStatus.FAILED, f"{name}: unsupported, and no entry is named that it lacks"
    for name, arm, _, _ in arms:
        if arm.status == "unsupported":
            return JobStatus.UNSUPPORTED, f"{name} lacks {', '.join(arm.missing)}"
    # 2. A library that differs from itself says nothing about another one.
    for name, arm, again, repeat in arms:
        if again is None or again.status != "done":
            why = again.reason if again else "it was not run"
            return JobStatus.FAILED, _said_of(f"{name}, run again", why)
        if repeat is None or not repeat.equal or not _same_digests(arm.files, again.files):
            return JobStatus.NONDETERMINISTIC, f"the {name} differs from itself{_where(repeat)}"
        if arm.row_digests and again.row_digests and arm.row_digests != again.row_digests:
            why = "in rows that are not recorded"
            return JobStatus.NONDETERMINISTIC, f"the {name} differs from itself {why}"
    # 3. The comparison itself.
    if facts.comparison is None or facts.comparison.bytes_compared <= 0:
        return JobStatus.INDISTINCT, "no bytes were compared"
    if facts.comparison.equal != _same_digests(facts.baseline.files, facts.candidate.files):
        return JobStatus.FAILED, f"the arms' files {_CHANGED}"
    if not facts.comparison.equal:
        return JobStatus.DIFFERS, facts.twins
    if facts.unlike:
        return JobStatus.DIFFERS, facts.unlike
    if facts.twins:
        return JobStatus.INDISTINCT, facts.twins
    if not facts.baseline.rows == facts.candidate.rows == job.rows:
        counts = f"{facts.baseline.rows} and {facts.candidate.rows} rows instead of {job.rows}"
        return JobStatus.INDISTINCT, f"the arms recorded {counts}"
    # 4. Equality counts only when the control shows that the comparison can turn red.
    return _with_control(job, facts)


def _with_control(job: Job, facts: Facts) -> tuple[JobStatus, str]:
    control, change, row = facts.control, facts.change, job.control.row
    if control is None or control.status != "done":
        why = control.reason if control else "it was not run"
        return JobStatus.FAILED, _said_of(f"control ({job.control.change})", why)
    if change is None:
        return JobStatus.INDISTINCT, f"control ({job.control.change}): nothing was compared"
    early = [r for r in sorted({*change.h_out, *change.logits}) if r < row]
    if early:
        return JobStatus.DIFFERS, f"row {early[0]} depends on the token of the later row {row}"
    blind = [
        name
        for name, sees in (
            (f"row {row} of h_out.npy", row in change.h_out),
            (f"row {row} of logits.npy", row in change.logits),
            ("state.safetensors", change.state_differs),
        )
        if not sees
    ]
    if blind:
        return JobStatus.INDISTINCT, f"control: {job.control.change}, yet {blind[0]} stays the same"
    if {f.sha256 for f in control.files} & {f.sha256 for f in facts.candidate.files}:
        return JobStatus.FAILED, f"the control's files {_CHANGED}"
    return JobStatus.SAME, ""


def _said_of(arm: str, reason: str) -> str:
    """Why an arm gave nothing. One that was not run is not to blame: the reason says who is."""
    return reason if reason.startswith(NOT_RUN) else f"{arm}: {reason}"


def _control_line(job: Job, facts: Facts) -> str:
    if facts.change is None:
        return f"{job.control.change}: not compared"
    rows = len({*facts.change.h_out, *facts.change.logits})
    return f"{job.control.change}: {rows} of {job.rows} rows differ"


def _lost(facts: Facts) -> tuple[str, ...]:
    """Entries that the candidate's job lacks and the baseline's library has."""
    library = facts.baseline.library
    return tuple(n for n in facts.candidate.missing if library and n in library.symbols)


def _same_digests(a: Sequence[FileFact], b: Sequence[FileFact]) -> bool:
    return [(f.name, f.sha256) for f in a] == [(f.name, f.sha256) for f in b]


def _where(repeat: Comparison | None) -> str:
    if repeat is None or not repeat.differences:
        return ""
    d = repeat.differences[0]
    return f": {d.file} {d.tensor or ''}{list(d.index) if d.index else ''}".rstrip()


def conclude(jobs: Sequence[JobVerdict]) -> Verdict:
    """One exit code. A refusal of the gate (3) never gets here: nothing was run then.

    A difference (1) comes before a failed arm (4), because it is a finished proof: no second run,
    no larger machine and no longer time-out takes it back, while whoever retries on 4 would retry
    a broken library until the difference is lost. A failed arm comes before 5: the run was not
    what was asked for. An unsupported job makes the run a 5 when it was asked for by name, or
    when nothing passed; otherwise it is listed and the run is a 0.
    """
    statuses = [job.status for job in jobs]
    count = statuses.count
    same = count(JobStatus.SAME)
    doubtful = count(JobStatus.NONDETERMINISTIC) + count(JobStatus.INDISTINCT)
    missed = any(job.status is JobStatus.UNSUPPORTED and not job.skipped for job in jobs)
    if count(JobStatus.DIFFERS):
        code = Exit.DIFFERS
    elif count(JobStatus.FAILED):
        code = Exit.FAILED
    elif doubtful or missed or not same:
        code = Exit.UNPROVED
    else:
        code = Exit.SAME
    parts = [f"{count(s)} {s.value}" for s in JobStatus if count(s)]
    return Verdict(int(code), ", ".join(parts) or "no job ran", tuple(jobs))
