import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd import Federation, _extensions
from incrowd.errors import ConfigError
from incrowd.runs.config import DEMONSTRATION, MlpSection, parse
from incrowd.runs.sources import call
from incrowd.types import register
from tests.runs.small import load


def test_without_a_file_there_is_the_demonstration() -> None:
    config = load()
    assert config.data.name == "digits"
    assert (config.privacy.epsilon, config.privacy.delta) == (8.0, 1e-3)
    assert config == parse(tomllib.loads(DEMONSTRATION.read_text()))
    assert parse({"privacy": {"epsilon": 1.0, "delta": 1e-5}}).run.randomness == "system"


def test_an_override_has_the_type_that_toml_gives_it() -> None:
    config = load(
        overrides=["model.kind=mlp", "model.hidden = [30, 20]", 'local.loss="cross entropy"', "model.bias=false"]
    )
    assert config.model == MlpSection(kind="mlp", hidden=(30, 20), bias=False)
    assert config.local.loss == "cross entropy"
    assert load(overrides=["local.epochs=1", "local.epochs=3"]).local.epochs == 3


@pytest.mark.slow
@given(
    epsilon=st.floats(1e-3, 1e3),
    delta=st.floats(1e-12, 0.5),
    rounds=st.integers(1, 10**6),
    norms=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4),
)
def test_a_config_comes_back_from_its_json(epsilon: float, delta: float, rounds: int, norms: list[float]) -> None:
    clip = {"kind": "per-layer", "clip_norms": norms}
    config = parse({"privacy": {"epsilon": epsilon, "delta": delta, "rounds": rounds, "clip": clip}})
    assert parse(config.model_dump_json()) == config
    with pytest.raises(ConfigError, match=r"privacy\.rounds"):
        parse(config.model_dump_json().replace(f'"rounds":{rounds}', '"rounds":"many"'))


def written(folder: Path, says: str) -> str:
    """A package, and beside it a module, that say something."""
    (folder / "own_things").mkdir(parents=True)
    (folder / "own_things/__init__.py").write_text("from own_things.said import said\n")
    (folder / "own_things/said.py").write_text(f"def said(more=''): return {says!r} + more\n")
    return str(folder)


def told(folder: str | None, **arguments: str) -> str:
    found: str = call("own_things:said", arguments, folder=folder, field="model.module")
    return found


def test_each_folder_has_its_own_module_of_a_name(tmp_path: Path) -> None:
    one, other = written(tmp_path / "one", "one"), written(tmp_path / "other", "other")
    for folder, expected in ((one, "one"), (other, "other"), (one, "one"), (str(tmp_path / "one/../other"), "other")):
        assert told(folder) == expected
        assert told(folder, more="!") == f"{expected}!"
    assert str(tmp_path / "one") not in sys.path
    with pytest.raises(ConfigError, match="calling it failed: TypeError"):
        told(one, less="1")
    with pytest.raises(ConfigError, match=r"cannot be imported from .* or where Python looks"):
        call("own_things_nowhere:said", {}, folder=one, field="model.module")


@pytest.mark.parametrize("helps", ["helps_own.py", "helps_own/__init__.py", "helps_own/more.py"])
def test_each_folder_has_what_its_own_module_imports(helps: str, tmp_path: Path) -> None:
    source = "helps_own.more" if "more" in helps else "helps_own"
    for name in ("one", "other", "one"):
        folder = tmp_path / name
        (folder / helps).parent.mkdir(parents=True, exist_ok=True)
        (folder / helps).write_text(f"NAME = {name!r}\n")
        (folder / f"asks_{name}.py").write_text(f"from {source} import NAME\ndef said(): return NAME\n")
        assert call(f"asks_{name}:said", {}, folder=str(folder), field="model.module") == name


def test_settings_name_the_data_source_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extensions, "_REGISTERED", {})
    draw = np.random.default_rng(0)
    register(
        "data_sources", "wells", lambda count: {f"w{n}": (draw.normal(size=(4, 2)), [n % 2] * 4) for n in range(count)}
    )
    data = {"name": "source", "source": "wells", "arguments": {"count": 5}, "classes": 2, "identity": "wells"}
    budget = {"epsilon": 4.0, "delta": 1e-2, "rounds": 1, "ledger": str(tmp_path / "ledger.sqlite")}
    federation = Federation.from_tables({"data": {**data, "clients": 5}, "privacy": budget, "run": {}})
    result = federation.train(tmp_path / "run", progress=False)
    assert (result.summary["data"], result.summary["clients"]) == ("wells", 5)
    with pytest.raises(ConfigError, match=r"data\.clients = None"):
        Federation.from_tables({"data": data, "privacy": budget}).train(tmp_path / "other", progress=False)
