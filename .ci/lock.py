"""Write the lock files: the packages of pyproject.toml and what they need, with the hashes of their
Linux x86-64 wheels.

`make lock` runs it after a pin in pyproject.toml changed. pip resolves once for each Python
version; a package that they all share is written once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("manylinux2014_x86_64", *(f"manylinux_2_{n}_x86_64" for n in range(5, 29)))
ROOT = Path(__file__).resolve().parent.parent


def resolve(requirements: list[str], python: str) -> dict[str, set[str]]:
    """ "name==version" -> wheel hashes, for one Python version."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += [
        "--target",
        "unused",
        "--only-binary=:all:",
        "--report=-",
        "--python-version",
        python,
    ]
    command += [f"--platform={p}" for p in PLATFORMS] + requirements
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {
        f"{item['metadata']['name'].lower().replace('_', '-')}=={item['metadata']['version']}": {
            item["download_info"]["archive_info"]["hashes"]["sha256"]
        }
        for item in report["install"]
    }


def lock(path: Path, requirements: list[str]) -> None:
    found: dict[str, set[str]] = {}
    for python in PYTHONS:
        for pin, hashes in resolve(requirements, python).items():
            found.setdefault(pin, set()).update(hashes)
    if len({pin.split("==")[0] for pin in found}) != len(found):
        raise SystemExit(f"{path.name}: the Python versions need different versions of one package")
    lines = [f"# Written by `make lock` for Python {', '.join(PYTHONS)} on Linux x86-64."]
    for pin in sorted(found):
        lines += [f"{pin} \\", " \\\n".join(f"    --hash=sha256:{h}" for h in sorted(found[pin]))]
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    needed = project["build-system"]["requires"] + project["project"]["dependencies"]
    needed += [p for extra in project["project"]["optional-dependencies"].values() for p in extra]
    lock(ROOT / ".requirements.lock", needed + groups["test"] + groups["native"])
    lock(ROOT / ".requirements-lint.lock", groups["lint"])


if __name__ == "__main__":
    main()
