"""Every parser of the harness as a target: valid files to start from, hostile variants, a call."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pyharness.archive.entry import LogEntry, parse_entries
from pyharness.archive.layout import Manifest
from pyharness.archive.tlog import Checkpoint, unpack_bundle
from pyharness.errors import Exit
from pyharness.inputs.checkpoint import open_checkpoint
from pyharness.inputs.model import load_model
from pyharness.inputs.pack import write_pack
from pyharness.inputs.tokens import read_text, read_tokens
from pyharness.speed.timing import FILE
from pyharness.tests.archive.samples import small
from pyharness.tests.attack.command import Ended, call, guarded, toy_runs, vouch
from pyharness.tests.attack.mutate import anything, json_bytes, json_variants, spoiled
from pyharness.tests.attack.other_parsers import other_targets
from pyharness.tests.attack.target import Target
from pyharness.tests.inputs import samples
from pyharness.tests.test_compare import write_dump
from pyharness.tests.test_speed import speed_json, throttled
from pyharness.values import ModelSpec

RUN = ["--m1", "--rb", "2", "--synthetic", "gdn", "--prefix", "1"]


def targets(folder: Path) -> dict[str, Target]:
    """All of them, over files that are made in a folder of their own."""
    return {
        **_models(folder / "models"),
        **_tokens(folder / "tokens"),
        **_runs(folder / "runs"),
        **_dumps(folder / "dumps"),
        **_archive(folder / "archive"),
        **other_targets(folder),
    }


# ---- checkpoints, packs, tokens ------------------------------------------------------------------


def _models(folder: Path) -> dict[str, Target]:
    single = samples.write_checkpoint(folder / "single")
    sharded = samples.write_checkpoint(folder / "sharded", shards=2)
    pack = folder / "model.pack"
    write_pack(single, pack)

    def checkpoint(place: Path, name: str) -> Callable[[bytes], Ended]:
        def work(data: bytes) -> Ended:
            (place / name).write_bytes(data)
            return guarded(lambda: open_checkpoint(place))

        return work

    def whole(data: bytes) -> Ended:
        pack.write_bytes(data)
        return guarded(lambda: load_model(ModelSpec("pack", path=str(pack))))

    found = {}
    for name, place, file in (
        ("config.json", single, "config.json"),
        ("index", sharded, "model.safetensors.index.json"),
    ):
        found[name] = Target(json_variants((place / file).read_bytes()), checkpoint(place, file))
    copy = samples.write_checkpoint(folder / "copy")
    data = (copy / "model.safetensors").read_bytes()
    found["safetensors"] = Target(_container(data), checkpoint(copy, "model.safetensors"))
    found["pack"] = Target(_container(pack.read_bytes()), whole)
    return found


def _container(data: bytes) -> st.SearchStrategy[bytes]:
    """Of a safetensors file: the header as JSON, or any of its first bytes."""
    length = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + length], data[8 + length :]

    def joined(new: bytes) -> bytes:
        return len(new).to_bytes(8, "little") + new + rest

    return st.one_of(
        json_bytes(json.loads(header)).map(joined),
        json_bytes(json.loads(header)).map(joined),
        spoiled(data[:400]).map(lambda head: head + data[400:]),
        spoiled(data),
        anything(),
    )


def _tokens(folder: Path) -> dict[str, Target]:
    folder.mkdir()
    np.save(folder / "valid.npy", np.arange(20, dtype="<i4"))
    valid = (folder / "valid.npy").read_bytes()
    spec = ModelSpec("synthetic", "gdn", "tiny")

    def reader(name: str) -> Callable[[bytes], Ended]:
        def work(data: bytes) -> Ended:
            (folder / name).write_bytes(data)
            read = read_text if name == "t" else None
            path = folder / name
            return guarded(lambda: read(path, spec, 256) if read else read_tokens(path, 256))

        return work

    text = b" ".join(b"%d" % i for i in range(30))
    headers = st.one_of(spoiled(valid), spoiled(valid[:128]).map(lambda h: h + valid[128:]))
    return {
        "tokens.npy": Target(
            st.one_of(headers, npy_headers(valid[128:]), anything()), reader("t.npy")
        ),
        "tokens.txt": Target(st.one_of(spoiled(text), st.binary(max_size=99)), reader("t.txt")),
        "text": Target(st.one_of(spoiled(text), st.binary(max_size=99)), reader("t")),
    }


def npy_headers(data: bytes) -> st.SearchStrategy[bytes]:
    """Whole .npy headers that say something else."""
    words = st.sampled_from(
        ("'<i4'", "'|O'", "'<f4'", "'>i8'", "'<U4'", "'|V99999999'", "[('a','<i4')]", "'('", "None",
         "'(3,)<i4'", "'(1000000,1000)<i8'", "0", "'<i4", "{}", "'m8[s]'", "'<f8'", "'|u1'", "-1")
    )  # fmt: skip
    shapes = st.sampled_from(
        ("(20,)", "(-1,)", "(20L,)", "20", "(1e3,)", "(4,5)", "()", "(10**9,)", "(9999999999999,)",
         "(0,)", "(True,)", "(20", "((" * 90 + "))" * 90, "(-4,-5)", "('a',)", "(1,)*99", "[20]",
         "(2305843009213693952,8)", "(" + "1," * 200 + ")", "\\\n", "\t (20,)")
    )  # fmt: skip
    orders = st.sampled_from(("False", "True", "0", "None", "x", "{"))
    extra = st.sampled_from(("", ", 'a': 1", "}", " 'shape': (1,)", "\0", "é", ", " + "[" * 300))
    version = st.sampled_from((b"\1\0", b"\2\0", b"\3\0", b"\4\0", b"\0\0"))

    def made(parts: tuple[str, str, str, str, bytes]) -> bytes:
        descr, shape, order, more, number = parts
        text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}{more}}}\n"
        size = 2 if number == b"\1\0" else 4
        body = text.encode("latin1")
        return b"\x93NUMPY" + number + len(body).to_bytes(size, "little") + body + data

    return st.tuples(words, shapes, orders, extra, version).map(made)


# ---- runs and dumps ------------------------------------------------------------------------------


def _runs(folder: Path) -> dict[str, Target]:
    folder.mkdir()
    where: list[Any] = ["--out", folder / "out"]
    with toy_runs():
        assert call([*RUN, *where]).code == Exit.SAME
    (run,) = (folder / "out").iterdir()
    kept = {name: (run / name).read_bytes() for name in ("verdict.json", "record.json")}
    archive = ["--archive", folder / "archive", "--pin", folder / "pin"]

    def restore() -> None:
        for name, valid in kept.items():
            (run / name).write_bytes(valid)

    def timed(data: bytes) -> Ended:
        restore()
        (run / FILE).write_bytes(data)
        ended = call(["show", run, *where])
        (run / FILE).unlink()
        return ended

    def with_file(name: str, *commands: list[Any]) -> Callable[[bytes], Ended]:
        def work(data: bytes) -> Ended:
            restore()
            (run / name).write_bytes(data)
            if name == "record.json":
                vouch(run)
            ended = Ended(0, "", "")
            with toy_runs():
                for command in commands:
                    ended = call([command[0], run, *command[1:], *where])
                    if ended.complaint:
                        break
            for path in (folder / "out").iterdir():  # of replays
                if path != run:
                    shutil.rmtree(path)
            return ended

        return work

    every = (Exit.SAME, Exit.DIFFERS, Exit.USAGE, Exit.FAILED, Exit.UNPROVED, Exit.REFUSED)
    speed = json.dumps(speed_json(throttled())).encode()
    show, replay = ["show"], ["replay"]
    accept = ["accept", "--why", "x", *archive]
    return {
        "verdict.json": Target(
            json_variants(kept["verdict.json"]),
            with_file("verdict.json", show, [*show, "--json", "-"], accept), every,
        ),
        "record.json": Target(
            json_variants(kept["record.json"]),
            with_file("record.json", show, accept, replay), every,
        ),
        FILE: Target(json_variants(speed), timed),
    }  # fmt: skip


def _dumps(folder: Path) -> dict[str, Target]:
    folder.mkdir()
    for arm in ("a", "b"):
        write_dump(folder / arm)
    found = {}
    for name in ("h_out.npy", "state.safetensors"):
        valid = (folder / "b" / name).read_bytes()

        def work(data: bytes, name: str = name, valid: bytes = valid) -> Ended:
            (folder / "b" / name).write_bytes(data)
            ended = call(["compare", folder / "a", folder / "b"])
            (folder / "b" / name).write_bytes(valid)
            if ended.code == Exit.SAME and data != valid:
                return Ended(Exit.DEFECT, "", f"defect: {name} differs and nobody sees it")
            return ended

        variants = (
            st.one_of(spoiled(valid), npy_headers(valid[128:]), anything())
            if name.endswith("npy")
            else _container(valid)
        )
        found[f"dump {name}"] = Target(variants, work, (Exit.SAME, Exit.DIFFERS, Exit.USAGE))
    return found


# ---- the archive ---------------------------------------------------------------------------------


def _archive(folder: Path) -> dict[str, Target]:
    """Parsers behind the log's root are called by themselves; the files through the gate."""
    site = small(folder)
    snapshot = site.snapshot()
    entry, manifest = snapshot.raw_entries[3], snapshot.manifests[3].to_bytes()
    bundle = b"".join(len(e).to_bytes(2, "big") + e for e in snapshot.raw_entries)
    checkpoint = site.pin.read_bytes()

    def parsed(parse: Callable[[bytes], Any]) -> Callable[[bytes], Ended]:
        def work(data: bytes) -> Ended:
            try:
                parse(data)
            except ValueError:
                return Ended(0, "", "")
            return Ended(0, "", "")

        return work

    def file(path: Path) -> Callable[[bytes], Ended]:
        valid = path.read_bytes()

        def work(data: bytes) -> Ended:
            path.unlink()
            path.write_bytes(data)
            line: list[Any] = ["archive", "verify", "--archive", site.archive, "--pin", site.pin]
            ended = call(line)
            path.unlink()
            path.write_bytes(valid)
            if ended.code == Exit.SAME and data != valid:
                return Ended(Exit.DEFECT, "", f"defect: {path.name} changed and nobody sees it")
            return ended

        return work

    canonical = st.one_of(
        json_bytes(json.loads(manifest), canonical=True), spoiled(manifest), anything()
    )
    lines = st.one_of(json_bytes(json.loads(entry), canonical=True), spoiled(entry), anything())
    points = st.one_of(
        spoiled(checkpoint), anything(), st.just(checkpoint.replace(b"5", b"9" * 12))
    )
    gate = (Exit.SAME, Exit.REFUSED)
    index = site.archive / "index.json"
    entries = site.archive / "log/tile/entries/000.p/5"
    return {
        "manifest": Target(canonical, parsed(Manifest.parse)),
        "entry": Target(lines, parsed(LogEntry.parse)),
        "entries": Target(lines, parsed(lambda d: parse_entries([*snapshot.raw_entries[:3], d]))),
        "bundle": Target(
            st.one_of(spoiled(bundle), anything()), parsed(lambda d: unpack_bundle(d, 5))
        ),
        "checkpoint": Target(points, parsed(Checkpoint.parse)),
        "archive: pin": Target(points, file(site.pin), gate),
        "archive: checkpoint": Target(points, file(site.archive / "log/checkpoint"), gate),
        "archive: index": Target(json_variants(index.read_bytes()), file(index), gate),
        "archive: bundle": Target(spoiled(entries.read_bytes()), file(entries), gate),
        "archive: oci-layout": Target(
            json_variants(b'{"imageLayoutVersion":"1.0.0"}'),
            file(site.archive / "oci-layout"),
            gate,
        ),
    }
