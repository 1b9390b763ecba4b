"""More targets: what workers and libraries say, ELF files, settings."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from hypothesis import strategies as st

from pyharness import config, gate
from pyharness.compare import FILES
from pyharness.errors import Exit
from pyharness.host.session import build_info
from pyharness.runner.base import WorkerRequest
from pyharness.runner.local import _result
from pyharness.runner.process import Ended as ProcessEnded
from pyharness.tests.attack.command import Ended, call, guarded
from pyharness.tests.attack.mutate import anything, json_variants, spoiled
from pyharness.tests.attack.target import Target
from pyharness.tests.fake_arms import NEW, FakeRunner
from pyharness.tests.stubs import stub
from pyharness.values import ArmPlan, ModelSpec, Op, from_json, to_json


def other_targets(folder: Path) -> dict[str, Target]:
    return {
        **_processes(folder / "processes"),
        "library": _library(folder),
        "pyproject": _pyproject(folder / "project"),
    }


class _Bound:
    def __init__(self, data: bytes) -> None:
        self.data = data.partition(b"\0")[0]

    def build_info(self) -> bytes:
        return self.data


def _processes(folder: Path) -> dict[str, Target]:
    plan = ArmPlan(
        "candidate", "arm", ModelSpec("synthetic", "gdn", "tiny"), (Op("step", (1, 2), True),)
    )
    folder.mkdir()
    result = FakeRunner().run(plan, NEW, folder / "out")
    reply = json.dumps(to_json(result)).encode()
    request = json.dumps(to_json(WorkerRequest(plan, 5, NEW.digest, 10, "/out"))).encode()
    info = json.dumps(
        {"backend": "cpu", "bits_version": 1, "flags": ["-O2"], "dirty": False, "x": {"y": 0.5}}
    ).encode()

    def replied(data: bytes) -> Ended:
        ended = ProcessEnded(1, 0, data + b"\n", b"")
        return guarded(lambda: _result(plan, ended, "a call", folder / "out", FILES))

    def asked(data: bytes) -> Ended:
        with contextlib.suppress(ValueError, RecursionError):
            from_json(WorkerRequest, json.loads(data))
        return Ended(0, "", "")

    def told(data: bytes) -> Ended:
        def work() -> None:
            value = build_info(_Bound(data))  # type: ignore[arg-type]
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # as records do

        return guarded(work)

    every = (Exit.SAME, Exit.FAILED)
    return {
        "reply": Target(json_variants(reply), replied, every),
        "request": Target(json_variants(request), asked),
        "build_info": Target(json_variants(info), told, every),
    }


def _library(folder: Path) -> Target:
    data = stub().read_bytes()
    path = folder / "library.so"

    def work(data: bytes) -> Ended:
        path.write_bytes(data)
        read = call(["symbols", path])
        # the gate reads on behalf of every other command; nothing of it is loaded here
        opened = guarded(lambda: gate.open_candidate(path).close())
        return opened if read.code in (Exit.SAME, Exit.FAILED) else read

    heads = spoiled(data[:1024]).map(lambda head: head + data[1024:])
    return Target(
        st.one_of(heads, heads, spoiled(data), anything()), work,
        (Exit.SAME, Exit.USAGE, Exit.FAILED),
    )  # fmt: skip


def _pyproject(folder: Path) -> Target:
    folder.mkdir()
    path = folder / "pyproject.toml"
    keys = st.sampled_from((*config.KEYS, "unknown", '"a b"', "a.b", "tool", ""))
    values = st.sampled_from(
        ('"x"', "1", "-1", "1.5", "inf", "-inf", "nan", "true", "[]", "{}", "1979-05-27", "'~/x'",
         "'~nobody-of-this-name/x'", '"a\\u0000b"', '"\\uD800"', '""', '"."', "9" * 5000, "1e999",
         "1" + "0" * 400, "[" * 2000 + "]" * 2000, "[" * 500 + "]" * 500, '"' + "y" * 70000 + '"',
         "0x10", '"portable"', "{a={a={a=1}}}", '"""', "'''x\ny'''", '"1_0"', '" 3 "', '"\\n"',
         "{a=" * 400 + "1" + "}" * 400, "9223372036854775808", '"1e3"', '"\u0661"')
    )  # fmt: skip
    tables = st.sampled_from(
        ("[tool.vllm-ab]", "[tool]\nvllm-ab = 1\n[x]", "tool = 1\n[x]", "[[tool.vllm-ab]]",
         "[[tool]]\n[tool.vllm-ab]", "tool = []\n[y]", "[tool.vllm-ab",
         "[tool.vllm-ab]\n" * 2, "\ufeff")
    )  # fmt: skip
    lines = st.lists(st.tuples(keys, values).map(" = ".join), max_size=3)
    texts = st.tuples(tables, lines).map(lambda t: "\n".join([t[0], *t[1]]).encode("utf-8"))

    def work(data: bytes) -> Ended:
        path.write_bytes(data)
        here = os.getcwd()
        os.chdir(folder)
        try:
            return call(["config", "show"])
        finally:
            os.chdir(here)

    return Target(st.one_of(texts, texts, texts.flatmap(spoiled), anything()), work)
