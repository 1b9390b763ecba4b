"""Single files that once took a parser down, or that cost far more than they weigh."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyharness import config
from pyharness.archive import verify
from pyharness.errors import Exit, GateRefusal, HarnessError, InputError, UsageError
from pyharness.files import LARGEST_LIBRARY, LARGEST_TEXT, read_regular, write_atomically
from pyharness.gate import open_candidate
from pyharness.host.elf import read_elf
from pyharness.inputs import tokens
from pyharness.inputs.checkpoint import read_config
from pyharness.inputs.safetensors import (
    parse_json_object,
    read_safetensors,
    write_safetensors,
)
from pyharness.inputs.tokens import read_text, read_tokens
from pyharness.messages import LONGEST, one_line
from pyharness.tests.archive.samples import elf, small
from pyharness.tests.attack.command import Ended, call, toy_runs, vouch
from pyharness.tests.attack.parsers import RUN
from pyharness.tests.inputs import samples
from pyharness.tests.stubs import stub
from pyharness.tests.test_compare import write_dump
from pyharness.values import ModelSpec

MB = 1 << 20


def peak(work: Callable[[], object]) -> int:
    """Bytes allocated at the most; the work must end in an error of the harness."""
    tracemalloc.start()
    try:
        with pytest.raises(HarnessError):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def sparse(path: Path, size: int, head: bytes = b"") -> Path:
    path.write_bytes(head)
    os.truncate(path, size)
    return path


# ---- memory and time -----------------------------------------------------------------------------


def test_a_sparse_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = sparse(tmp_path / "pin", 1 << 40)
    assert peak(lambda: read_regular(path)) < 3 * LARGEST_TEXT
    with pytest.raises(InputError, match=f"is over {LARGEST_TEXT} bytes"):
        read_regular(path)
    library = sparse(tmp_path / "huge.so", LARGEST_LIBRARY + 1, elf(1))
    assert peak(lambda: open_candidate(library)) < MB


def test_an_endless_device_is_no_file(tmp_path: Path) -> None:
    for name in ("config.json", "model.pack", "t.txt", "h_out.npy", "library.so"):
        (tmp_path / name).symlink_to("/dev/zero")
    assert peak(lambda: read_config(tmp_path)) < MB
    assert peak(lambda: read_safetensors(tmp_path / "model.pack")) < MB
    assert call(["symbols", tmp_path / "library.so"]).code == Exit.USAGE
    assert call(["compare", tmp_path, tmp_path]).code == Exit.USAGE


def test_a_result_goes_into_a_device_and_not_in_its_place(tmp_path: Path) -> None:
    """As root, ``--json /dev/null`` once put a file there."""
    pipe = tmp_path / "out"
    pipe.symlink_to("/dev/full")
    for path in (pipe, Path("/dev/null")):
        before = os.stat(path)
        write = partial(write_atomically, path, b"{}")
        if path == pipe:
            with pytest.raises(InputError, match="cannot be written: No space left"):
                write()
        else:
            write()
        assert os.path.samestat(before, os.stat(path)) and pipe.is_symlink()
    with pytest.raises(InputError, match="no file that could be replaced"):
        write_safetensors(pipe, [])


def test_a_pipe_does_not_hold_a_reader_up(tmp_path: Path) -> None:
    for name in ("config.json", "model.pack", "h_out.npy", "library.so"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="not a regular file"):
        read_safetensors(tmp_path / "model.pack")
    with pytest.raises(InputError, match="not a regular file"):
        read_config(tmp_path)
    assert call(["symbols", tmp_path / "library.so"]).code == Exit.USAGE
    assert call(["compare", tmp_path, tmp_path]).code == Exit.USAGE


def test_tokens_beyond_the_limit_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MOST_TOKENS", 1000)
    monkeypatch.setattr(tokens, "LARGEST_FILE", 4 * MB)
    (tmp_path / "t.txt").write_bytes(b"1 " * MB)
    np.save(tmp_path / "t.npy", np.zeros(MB, np.uint8))
    (tmp_path / "text").write_bytes(b"a" * MB)
    spec = ModelSpec("synthetic", "gdn", "tiny")
    for read in (
        partial(read_tokens, tmp_path / "t.txt", 9),
        partial(read_tokens, tmp_path / "t.npy", 9),
        partial(read_text, tmp_path / "text", spec, 256),
    ):
        assert peak(read) < 9 * MB  # the file, as often as it is copied; no list of its tokens


def test_a_doubled_key_is_found_among_many() -> None:
    """The search once compared each key with each other one: this took an hour."""
    text = "{" + ",".join(f'"{i}":0' for i in range(300_000)) + ',"299999":1}'
    with pytest.raises(InputError, match="'299999' is there twice"):
        parse_json_object(text.encode(), "header")


def test_names_that_overlap_are_not_multiplied() -> None:
    """Every symbol of a library may be named by the end of one name that is as long as the file."""
    count, long = 4000, 1 << 20
    strings = 0x1000
    table = strings + long + 8
    entries = [(5, strings), (10, long + 1), (6, table), (11, 24), (4, table + 24 * count), (0, 0)]
    dynamic = b"".join(tag.to_bytes(8, "little") + v.to_bytes(8, "little") for tag, v in entries)
    end = table + 24 * count + 8
    head = bytearray(elf(0)[:64])
    head[32:40], head[54:58] = (64).to_bytes(8, "little"), bytes((56, 0, 2, 0))
    load = (1, 5, 0, 0, 0, end)
    dyn = (2, 5, 64 + 112, 64 + 112, 0, len(dynamic))
    programs = b"".join(
        t.to_bytes(4, "little") + f.to_bytes(4, "little")
        + b"".join(v.to_bytes(8, "little") for v in rest) + bytes(16)
        for t, f, *rest in (load, dyn)
    )  # fmt: skip
    symbol = (
        (1).to_bytes(4, "little") + bytes((0x12, 0)) + (1).to_bytes(2, "little") + bytes(15) + b"\1"
    )
    data = bytes(head) + programs + dynamic
    data = data.ljust(strings, b"\0") + b"\0" + b"a" * (long - 1) + b"\0" + bytes(7)
    data += symbol * count + bytes(4) + count.to_bytes(4, "little")
    assert peak(lambda: read_elf(data)) < 20 * MB


def test_a_library_without_harm_is_read() -> None:
    assert "vcuda_dev_open" in read_elf(stub().read_bytes()).names


# ---- numbers, depth, names -----------------------------------------------------------------------


def test_a_shape_whose_size_no_number_is_printed_for(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [10**4200, 10**4200], "data_offsets": [0, 4]}
    path = tmp_path / "x.safetensors"
    path.write_bytes(samples.raw_safetensors({"a": entry}, b"1234"))
    with pytest.raises(InputError, match="invalid shape"):
        read_safetensors(path)


def test_a_tensor_whose_name_no_report_can_hold(tmp_path: Path) -> None:
    for arm in ("a", "b"):
        write_dump(tmp_path / arm)
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    state = samples.raw_safetensors({"\ud800": entry}, b"1234")
    (tmp_path / "b" / "state.safetensors").write_bytes(state)
    ended = call(["compare", tmp_path / "a", tmp_path / "b"])
    assert ended.code == Exit.USAGE and not ended.complaint, ended


def test_a_head_that_no_float_can_hold(tmp_path: Path) -> None:
    samples.write_checkpoint(tmp_path, config=samples.change(samples.CONFIG, head_dim=10**400))
    with pytest.raises(InputError, match="head_dim"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "tool = 1", "tool = []", "[tool.vllm-ab]\ntimeout = 1" + "0" * 400,
        "[tool.vllm-ab]\nthreads = inf", "[tool.vllm-ab]\nthreads = 1.5",
        "[tool.vllm-ab]\nseed = " + "9" * 5000, "[tool.vllm-ab]\nout = " + "[" * 3000,
        '[tool.vllm-ab]\nout = "a\\u0000b"', "[tool.vllm-ab]\nout = '~nobody-of-this-name/x'",
    ],
)  # fmt: skip
def test_settings_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    if text.startswith("tool"):
        assert config.project_root(tmp_path) != tmp_path
        return
    with pytest.raises((UsageError, InputError)) as caught:
        config.resolve({}, {}, tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_folders_without_end_in_an_archive(tmp_path: Path) -> None:
    site = small(tmp_path)
    deep = site.archive / "log"
    for _ in range(60):
        deep = deep / ("d" * 50)
    deep.mkdir(parents=True)
    with pytest.raises(GateRefusal, match="has no place in an archive"):
        verify(site.archive, site.pin)


def test_arguments_that_no_record_can_hold() -> None:
    ended = call(["--m1", "--synthetic", "gdn", "--text", "\udcff"])
    assert ended.code == Exit.USAGE and "is not UTF-8" in ended.err and not ended.complaint
    for command in (["show"], ["gate", "--candidate"], ["--m1", "--model"], ["symbols"]):
        ended = call([*command, "x" * 6000])
        assert ended.code == Exit.USAGE and not ended.complaint, ended


def test_a_harness_that_cannot_be_imported_does_not_say_that_bits_differ(tmp_path: Path) -> None:
    """Python ends with 1 then."""
    (tmp_path / "click.py").write_text("raise ImportError('no click here')")
    root = Path(__file__).resolve().parents[3]
    path = {**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"}
    line = [sys.executable, "-m", "pyharness", "--help"]
    done = subprocess.run(line, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.DEFECT
    assert done.stderr == "run-ab: cannot start: ImportError: no click here\n"


def test_a_message_is_one_line_of_plain_text() -> None:
    assert one_line("a\n\x1b[2J\udcff") == r"a \x1b[2J\udcff"
    assert len(one_line("x" * 10**6)) < LONGEST + 50


# ---- records and verdicts ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("bombs") / "out"
    with toy_runs():
        assert call([*RUN, "--out", out]).code == Exit.SAME
    (run,) = out.iterdir()
    yield run


def changed(
    run: Path, name: str, path: tuple[Any, ...], value: Any
) -> Callable[[list[Any]], Ended]:
    """Runs a command on the run whose file says something else at one place."""

    def told(command: list[Any]) -> Ended:
        valid = (run / name).read_bytes()
        whole = copy.deepcopy(json.loads(valid))
        place = whole
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value
        (run / name).write_text(json.dumps(whole))
        verdict = (run / "verdict.json").read_bytes()
        if name == "record.json":
            vouch(run)
        try:
            with toy_runs():
                return call([command[0], run, *command[1:], "--out", run.parent])
        finally:
            (run / "verdict.json").write_bytes(verdict)
            (run / name).write_bytes(valid)

    return told


FIRST = ("suite", "jobs", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("workers",), 0), (("workers",), 10**9), (("suite", "jobs"), []),
        ((*FIRST, "id"), "a\0b"), ((*FIRST, "id"), "x" * 300), ((*FIRST, "id"), "\ud800"),
        ((*FIRST, "id"), "gdn-tiny/p1/rb2"),
        ((*FIRST, "rows"), -1), ((*FIRST, "control", "row"), 99),
        ((*FIRST, "baseline", "arm"), "candidate"), ((*FIRST, "candidate", "role"), "control"),
        ((*FIRST, "candidate", "timeout_s"), float("nan")),
        ((*FIRST, "candidate", "timeout_s"), 1e308), ((*FIRST, "candidate", "mmax"), 2**40),
        ((*FIRST, "control", "change"), "\ud800"), (("run",), "\ud800"),
        (("machine",), {"a": float("nan")}),
        (("inputs",), [{"name": "a\0b", "sha256": "sha256:" + "1" * 64, "size_bytes": 1}]),
    ],
)  # fmt: skip
def test_a_record_that_nobody_planned_is_not_replayed(
    finished: Path, path: tuple[Any, ...], value: Any
) -> None:
    ended = changed(finished, "record.json", path, value)(["replay"])
    assert ended.code in (Exit.USAGE, Exit.UNPROVED) and not ended.complaint, ended
    assert len(list(finished.parent.iterdir())) == 1, "a run was begun"


def test_accept_reads_strange_records(finished: Path, tmp_path: Path) -> None:
    accept = ["accept", "--why", "x", "--archive", tmp_path / "a", "--pin", tmp_path / "p"]
    for path, value in (
        (("libraries",), {}),
        (("libraries", "candidate", "origin"), "a\0b"),
    ):
        ended = changed(finished, "record.json", path, value)(accept)
        assert ended.code in (Exit.USAGE, Exit.UNPROVED) and not ended.complaint, ended
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("exit_code",), 1), (("exit_code",), 99), (("jobs",), []), (("summary",), "all is fine"),
        (("jobs", 0, "status"), "differs"), (("libraries",), None), (("notes",), ["\ud800"]),
        (("libraries", "candidate", "size_bytes"), "x"), (("libraries", "candidate"), {}),
    ],
)  # fmt: skip
def test_a_verdict_that_does_not_follow_is_none(
    finished: Path, path: tuple[Any, ...], value: Any
) -> None:
    """An exit code edited by hand was once what `show` ended with."""
    for command in (["show"], ["show", "--json", "-"], ["replay"]):
        ended = changed(finished, "verdict.json", path, value)(command)
        assert ended.code == Exit.USAGE and not ended.complaint, ended


def test_a_red_verdict_is_not_made_green_by_its_exit_code(finished: Path) -> None:
    for code in range(6):
        ended = changed(finished, "verdict.json", ("exit_code",), code)(["show"])
        assert ended.code == (Exit.SAME if code == 0 else Exit.USAGE)
