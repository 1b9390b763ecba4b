"""Settings: the order of sources, and that nothing unknown is swallowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyharness import cli, config
from pyharness.errors import Exit, InputError, UsageError


def project(folder: Path, table: str) -> Path:
    (folder / "pyproject.toml").write_text(table)
    return folder


def test_defaults_lie_under_the_root(tmp_path: Path) -> None:
    settings = config.resolve({}, {}, project(tmp_path, "[tool.vllm-ab]\n"))
    assert settings["archive"] == tmp_path / "archive" and settings["timeout"] == 600.0
    assert {s.source for s in settings.values.values()} == {"default"}


def test_later_sources_win(tmp_path: Path) -> None:
    root = project(tmp_path, "[tool.vllm-ab]\ntimeout = 5\nthreads = 2\nseed = 3\n")
    environment = {"VLLM_AB_THREADS": "4", "VLLM_AB_SEED": "5", "OTHER": "x"}
    settings = config.resolve({"seed": 6, "isa": None}, environment, root)
    found = {k: (settings[k], settings.values[k].source) for k in ("timeout", "threads", "seed")}
    assert found == {
        "timeout": (5.0, "pyproject.toml"),
        "threads": (4, "VLLM_AB_THREADS"),
        "seed": (6, "--seed"),
    }


def test_root_is_found_from_a_folder_below(tmp_path: Path) -> None:
    root = project(tmp_path, "[tool.vllm-ab]\n")
    below = root / "a" / "b"
    below.mkdir(parents=True)
    assert config.project_root(below) == root
    (below / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert config.project_root(below) == root  # not one of ours
    (below / "archive").mkdir()
    (below / "archive/oci-layout").touch()
    assert config.project_root(below) == below


def test_relative_paths_of_options_are_relative_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project(tmp_path, '[tool.vllm-ab]\nout = "elsewhere"\n')
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    settings = config.resolve({"candidate": Path("lib.so")}, {}, root)
    assert (
        settings["candidate"] == tmp_path / "x" / "lib.so" and settings["out"] == root / "elsewhere"
    )


@pytest.mark.parametrize(
    ("table", "environment", "message"),
    [
        ("[tool.vllm-ab]\ncolour = 1\n", {}, "unknown setting 'colour'"),
        ("", {"VLLM_AB_TYPO": "1"}, "unknown setting 'typo'"),
        ("", {"VLLM_AB_THREADS": "many"}, "threads must be a whole number"),
        ("", {"VLLM_AB_THREADS": "-1"}, "threads cannot be"),
        ("", {"VLLM_AB_TIMEOUT": "0"}, "timeout must be"),
        ("", {"VLLM_AB_TIMEOUT": "nan"}, "timeout must be"),
        ("", {"VLLM_AB_ISA": "sse"}, "isa must be one of"),
        ("", {"VLLM_AB_OUT": ""}, "out must be a path"),
        ("[tool.vllm-ab]\nthreads = true\n", {}, "threads cannot be True"),
        ("[tool.vllm-ab]\nout = 3\n", {}, "out must be a path"),
    ],
)
def test_wrong_settings_are_usage_errors(
    tmp_path: Path, table: str, environment: dict[str, str], message: str
) -> None:
    root = project(tmp_path, table or "[tool.vllm-ab]\n")
    with pytest.raises(UsageError, match=message):
        config.resolve({}, environment, root)


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as e:
        config.resolve({}, {}, project(tmp_path, "[tool.vllm-ab\n"))
    assert "\n" not in str(e.value)
    with pytest.raises(InputError, match="is not a table"):
        config.resolve({}, {}, project(tmp_path, "[tool]\nvllm-ab = 1\n"))


def test_every_key_has_a_meaning() -> None:
    assert all(meaning for _, _, meaning in config.KEYS.values())


def test_every_setting_has_its_option() -> None:
    """``config show`` names three places beside the default, of which the option is one."""
    options = {name for parameter in cli.cli.params for name in parameter.opts}
    assert {f"--{key}" for key in config.KEYS} <= options


def test_the_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["speed"], ["archive", "recompute"]):
        assert cli.run([*command, "--workers", "65"]) == Exit.USAGE
        assert "--workers: workers must be 0 to 64, not 65" in capsys.readouterr().err
