"""``--backend``: which libraries it means, and what is said where they cannot run.

The built CPU library stands in for a CUDA one: it says that it is one, and has the name of the
section in which code for a GPU lies; the machine is told to have a GPU or none.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pyharness import cli, commands, config, device, record
from pyharness.errors import Exit, UsageError
from pyharness.tests.test_device import driver

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build/cpu/libvllm_cuda.so"
SOURCES = record.sources_digest()
DEVICE_CODE = b"\0.nv_fatbin\0"
SAYS_CPU, SAYS_CUDA = b'"backend": "cpu"', b'"backend":"cuda"'
NO_GPU = "no NVIDIA driver: no CUDA library can run here"
SMALL = ("--mt", "2", "--synthetic", "gdn", "--prefix", "0")
WHOLE = ("--m1", "--mt", "2", "--rb", "2", "--synthetic", "hybrid", "--prefix", "0")


class Place:
    """A project of its own: an archive with a CPU and a CUDA baseline, and a build of each."""

    def __init__(
        self, folder: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.folder, self.capture, self.patch = folder, capture, patch
        patch.setattr(record, "sources_digest", lambda: SOURCES)
        patch.chdir(folder)
        (folder / "pyproject.toml").write_text("[tool.vllm-ab]\n")
        self.gpu(True)
        cpu = BUILT.read_bytes()
        assert cpu.count(SAYS_CPU) == 1 and len(SAYS_CPU) == len(SAYS_CUDA)
        cuda = cpu.replace(SAYS_CPU, SAYS_CUDA) + DEVICE_CODE
        for backend, data in (("cpu", cpu), ("cuda", cuda)):
            path = folder / f"build/{backend}/libvllm_cuda.so"
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
            added = ["archive", "add", str(path), "--label", f"{backend}-m8", "--why", "x"]
            assert self(*added, "--no-probe") == Exit.SAME
            path.write_bytes(path.read_bytes() + b"new")

    def __call__(self, *arguments: str | Path) -> int:
        self.capture.readouterr()
        return int(cli.run([str(a) for a in arguments]))

    def gpu(self, there: bool) -> None:
        self.patch.setattr(
            device, "missing", lambda backend: "" if there or backend != "cuda" else NO_GPU
        )

    def compared(self) -> tuple[str, str]:
        """The libraries of the last run, by the names that the archive and the build have."""
        folder = record.find_run(self.folder / "abruns", "last")
        libraries = record.read_record(folder).libraries
        listed = {str(b.digest): b for b in libraries.values()}
        assert self("archive", "list", "--json") == Exit.SAME
        labels = {x["digest"]: x["label"] for x in json.loads(self.capture.readouterr().out)}
        baseline, candidate = (str(libraries[arm].digest) for arm in ("baseline", "candidate"))
        return labels[baseline], Path(listed[candidate].origin).parent.name


@pytest.fixture
def place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Place:
    if not BUILT.exists():
        pytest.skip("no CPU library; build it with `make native`")
    return Place(tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("line", "baseline", "candidate"),
    [
        ((), "cpu-m8", "cpu"),
        (("--backend", "cpu"), "cpu-m8", "cpu"),
        (("--backend", "cuda"), "cuda-m8", "cuda"),
        (("--backend", "cpu", "--candidate", "build/cuda/libvllm_cuda.so"), "cpu-m8", "cuda"),
        (("--candidate", "build/cuda/libvllm_cuda.so"), "cpu-m8", "cuda"),
        (("--backend", "cuda", "--candidate", "build/cpu/libvllm_cuda.so"), "cuda-m8", "cpu"),
        (("--backend", "cuda", "--baseline", "cpu-m8"), "cpu-m8", "cuda"),
    ],
)
def test_what_is_not_named_is_of_the_backend(
    place: Place, line: tuple[str, ...], baseline: str, candidate: str
) -> None:
    assert place(*SMALL, *line) == Exit.SAME
    assert place.compared() == (baseline, candidate)


def test_the_setting_has_the_four_places_of_all_settings(place: Place) -> None:
    place.patch.setenv("VLLM_AB_BACKEND", "cuda")
    assert place(*SMALL) == Exit.SAME and place.compared() == ("cuda-m8", "cuda")
    assert place(*SMALL, "--backend", "cpu") == Exit.SAME
    assert place.compared() == ("cpu-m8", "cpu")


def test_the_default_candidate_is_the_backends_build(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.vllm-ab]\n")
    cuda = tmp_path / "build/cuda/libvllm_cuda.so"
    found = config.resolve({"backend": "cuda"}, {}, tmp_path).values["candidate"]
    assert (found.value, found.source) == (cuda, "--backend")
    named = config.resolve({"backend": "cuda"}, {"VLLM_AB_CANDIDATE": "x.so"}, tmp_path)
    assert named["candidate"] == tmp_path / "x.so"
    assert config.resolve({}, {}, tmp_path).values["candidate"].source == "default"
    with pytest.raises(UsageError, match="backend must be one of cpu, cuda, not 'rocm'"):
        config.resolve({}, {"VLLM_AB_BACKEND": "rocm"}, tmp_path)


def test_a_cuda_library_becomes_the_cuda_baseline_only(place: Place) -> None:
    assert place(*WHOLE, "--backend", "cuda") == Exit.SAME
    assert place("accept", "last", "--label", "cuda-next", "--why", "x") == Exit.SAME
    assert place(*SMALL) == Exit.SAME and place.compared() == ("cpu-m8", "cpu")
    # the library just accepted is baseline and candidate at once
    assert place("--m1", "--synthetic", "gdn", "--backend", "cuda") == Exit.USAGE
    assert "baseline and candidate are one library" in place.capture.readouterr().err
    assert place("gate") == Exit.SAME
    lines = [x.split() for x in place.capture.readouterr().out.splitlines()]
    assert [(x[0], x[-2:]) for x in lines if x[0] == "baseline"] == [
        ("baseline", ["cpu-m8", "(cpu)"]),
        ("baseline", ["cuda-next", "(cuda)"]),
    ]
    assert place("archive", "log") == Exit.SAME
    _, cpu, cuda, new = (x.split() for x in place.capture.readouterr().out.splitlines())
    assert (cpu[0], cuda[:2]) == ("cpu-m8", ["cuda-m8", "cuda"])
    assert new[0] == "cuda-next" and "baseline" in new and "baseline" not in cuda


def test_the_gate_checks_the_baseline_of_every_backend(place: Place) -> None:
    blobs = place.folder / "archive/blobs/sha256"
    for blob in (p for p in blobs.iterdir() if p.read_bytes().endswith(DEVICE_CODE)):
        blob.chmod(0o644)
        blob.write_bytes(blob.read_bytes()[:-1] + b"\1")
    assert place("gate") == Exit.REFUSED
    assert place("archive", "verify") == Exit.REFUSED
    assert place(*SMALL, "--backend", "cuda") == Exit.REFUSED
    assert not (place.folder / "abruns").exists()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ((*SMALL, "--backend", "cuda"), "baseline cuda-m8"),
        ((*SMALL, "--baseline", "cuda-m8"), "baseline cuda-m8"),
        ((*SMALL, "--candidate", "build/cuda/libvllm_cuda.so"), "candidate "),
        (("speed", "--backend", "cuda"), "baseline cuda-m8"),
        (("dump", "--library", "build/cuda/libvllm_cuda.so", "--synthetic", "gdn", "--out", "x"),
         "build/cuda/libvllm_cuda.so"),
        (("archive", "add", "build/cuda/libvllm_cuda.so", "--label", "l", "--why", "w"),
         "build/cuda/libvllm_cuda.so"),
    ],
)  # fmt: skip
def test_where_no_gpu_is_one_line_says_so(place: Place, line: tuple[str, ...], named: str) -> None:
    place.gpu(False)
    assert place(*line) == Exit.FAILED
    told = place.capture.readouterr().err
    assert told.count("\n") == 1 and named in told and NO_GPU in told
    assert not (place.folder / "abruns").exists() and not (place.folder / "x").exists()


def test_a_replay_without_the_gpu_of_its_run(place: Place) -> None:
    assert place(*SMALL, "--backend", "cuda") == Exit.SAME
    place.gpu(False)
    assert place("replay", "last") == Exit.FAILED
    assert NO_GPU in place.capture.readouterr().err


def test_the_doctor_says_the_same(place: Place) -> None:
    def asked(*line: str) -> tuple[int, dict[str, tuple[str, str]]]:
        code = place("doctor", "--json", *line)
        checks = json.loads(place.capture.readouterr().out)["checks"]
        return code, {c["name"]: (c["status"], c["told"]) for c in checks}

    code, found = asked("--backend", "cuda")
    assert code == Exit.SAME and found["baseline"][1].startswith("cuda-m8, ")
    place.gpu(False)
    code, found = asked("--backend", "cuda")
    assert code == Exit.FAILED
    for name in ("baseline", "candidate"):
        assert found[name][0] == "broken" and found[name][1].endswith(NO_GPU)
    code, found = asked()
    assert code == Exit.SAME and found["built cuda"][0] == "broken"
    assert found["candidate"][0] == "ok"


def test_without_a_build_it_says_how_to_make_one(place: Place) -> None:
    shutil.rmtree(place.folder / "build")
    for line, target in (((), "make native"), (("--backend", "cuda"), "make cuda")):
        assert place(*SMALL, *line) == Exit.USAGE
        assert f"build it with `{target}`" in place.capture.readouterr().err


@pytest.mark.parametrize(("visible", "why"), [("0", ""), ("9", "no CUDA library can run here")])
def test_a_device_that_is_there_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, why: str
) -> None:
    path, opened = driver(tmp_path), device.open_gpu
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(device, "open_gpu", lambda which: opened(which, path))
    found = device.missing("cuda")
    assert found.endswith(why) and bool(found) is bool(why)
    assert device.missing("cpu") == ""


def test_a_driver_without_nvml_is_left_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, nowhere = device.open_gpu, str(tmp_path / "none.so")
    monkeypatch.setattr(device, "open_gpu", lambda which: opened(which, nowhere))
    monkeypatch.setattr(device, "NVML", nowhere)
    monkeypatch.setattr(device, "CUDA", nowhere)
    assert device.missing("cuda").endswith("no CUDA library can run here")
    monkeypatch.setattr(device, "CUDA", driver(tmp_path))
    assert device.missing("cuda") == ""


def test_the_record_names_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = driver(tmp_path)
    monkeypatch.setattr(record, "open_gpu", lambda visible: device.open_gpu("", path))
    told = record.machine()
    assert (told["gpu"], told["driver"]) == ("Test GPU", "600.1")
    monkeypatch.setattr(record, "open_gpu", lambda visible: device.open_gpu("", "none.so"))
    assert "gpu" not in record.machine()


def test_two_models_of_one_name_are_refused(place: Place) -> None:
    for name in ("a", "b"):
        shutil.copytree(ROOT / "pyharness/tests/golden/tiny-gdn", place.folder / name / "model")
    assert place("--m1", "--model", "a/model", "--model", "b/model") == Exit.USAGE
    assert "two models are named model" in place.capture.readouterr().err


def test_several_models_are_one_run() -> None:
    from pyharness.tests.goldens import NAMES, golden

    settings = config.resolve({}, {}, ROOT)
    options = commands.ModelOptions(("gdn",), model=tuple(golden(name) for name in NAMES))
    models = [w.model for w in commands.read_workloads(options, settings)]
    assert [m.kind for m in models] == ["synthetic", *["checkpoint"] * 3]
