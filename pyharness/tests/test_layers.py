"""The order of the layers: no stage reaches back, and only a worker process meets native code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in PACKAGE.rglob("*.py")
    if "tests" not in path.relative_to(PACKAGE).parts
}
# of the host: what loads or calls native code; its tables and the ELF reader do neither
NATIVE = tuple(f"pyharness.host.{name}" for name in ("loader", "session", "marshal", "arrays"))
OWNS_A_LIBRARY = {"worker", "speed.worker", "bench_cpu"}  # processes of their own
PURE = (
    "errors",
    "values",
    "plan",
    "verdict",
    "speed.stats",
    "report.document",
    "report.junit",
    "report.text",
)
EFFECTS = {"os", "subprocess", "shutil", "tempfile", "socket", "threading", "random", "time"}


def imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    """Full names of what a module imports; ``top_level``: when it is imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_there_are_modules() -> None:
    assert {"cli", "worker", "host.abi", "report.text"} <= set(MODULES)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_a_worker_meets_native_code(name: str) -> None:
    found = [m for m in imports(MODULES[name]) if m.startswith(NATIVE)]
    assert not found or name in OWNS_A_LIBRARY or name.startswith("host.")


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_have_no_effects(name: str) -> None:
    found = set(imports(MODULES[name]))
    assert not {m.partition(".")[0] for m in found} & EFFECTS
    upwards = ("runner", "host", "worker", "gate", "archive", "jobs", "record", "app", "cli")
    assert not [m for m in found if m.startswith(tuple(f"pyharness.{u}" for u in upwards))]


def test_the_command_line_imports_nothing_heavy() -> None:
    for name in ("cli", "cli_archive", "options", "errors", "__init__", "__main__"):
        roots = {m.partition(".")[0] for m in imports(MODULES[name], top_level=True)}
        assert not roots & {"numpy", "rich", "tokenizers"}
