import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd import Federation, _extensions
from incrowd.errors import ConfigError
from incrowd.runs.config import DEMONSTRATION, Config, MlpSection, load, parse, read_back
from incrowd.runs.data_config import MnistData
from incrowd.runs.sources import call
from incrowd.settings import known_keys
from incrowd.types import register

BUDGET = {"privacy": {"epsilon": 1.0, "delta": 1e-5}}


def test_without_a_file_there_is_the_demonstration() -> None:
    config = load()
    assert config.data.name == "digits"
    assert (config.privacy.epsilon, config.privacy.delta) == (8.0, 1e-3)
    assert config == parse(tomllib.loads(DEMONSTRATION.read_text()))


def test_the_default_is_private_and_the_budget_has_none() -> None:
    assert parse(BUDGET).run.randomness == "system"
    for missing in ("epsilon", "delta"):
        stated = {key: value for key, value in BUDGET["privacy"].items() if key != missing}
        with pytest.raises(ConfigError, match=rf"privacy\.{missing} = None: it has no default: state it"):
            parse({"privacy": stated})


def test_an_override_has_the_type_that_toml_gives_it() -> None:
    config = load(
        overrides=["model.kind=mlp", "model.hidden = [30, 20]", 'local.loss="cross entropy"', "model.bias=false"]
    )
    assert config.model == MlpSection(kind="mlp", hidden=(30, 20), bias=False)
    assert config.local.loss == "cross entropy"
    assert load(overrides=["local.epochs=1", "local.epochs=3"]).local.epochs == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("privacy.clients=3", "privacy.clients = 3: there is no such key; did you mean data.clients?"),
        ("privacy.clip.kind=fixed", "privacy.clip.clip_norm = None: it has no default: state it"),
        ("privacy.rounds=@", "privacy.rounds = '@': write a TOML value"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_remedy(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(overrides=[override])
    assert str(raised.value).startswith(message)


def test_a_data_folder_is_seen_from_the_file_and_an_override_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, here = tmp_path / "configs", tmp_path / "here"
    inner.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    file = inner / "run.toml"
    file.write_text('data = {name = "mnist", folder = "sets"}\nprivacy = {epsilon = 1.0, delta = 1e-5}\n')

    def folder(*overrides: str, data: str | None = None) -> str | None:
        found = load(file, overrides=overrides, data=data).data
        assert isinstance(found, MnistData)
        return found.folder

    assert folder() == str(inner / "sets")
    assert folder("data.folder=other") == str(here / "other")
    assert folder(data="given") == str(here / "given")
    assert folder(data="/given") == "/given"
    file.write_text('features = {name = "unit", cache = "kept"}\nprivacy = {epsilon = 1.0, delta = 1e-5}\n')
    assert load(file).features.cache == str(inner / "kept")
    assert load(data="ignored").data == load().data  # the embedded digits need no folder


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


def test_all_keys_are_known() -> None:
    keys = set(known_keys(Config))
    assert {"data.alpha", "privacy.clip.quantile", "run.trackers", "server.average", "features.name"} <= keys
    assert set(Config.model_fields) <= keys


def test_a_folder_of_silos_from_before_opens_or_says_how_to_go_on() -> None:
    terms = {"unit": "record", "epsilon": 8.0, "delta": 1e-5}
    run = {"chunk": None, "unavailable": 0.0, "diagnose": False}  # keys of whole clients, which it wrote for all
    gone = {"data": {"sigma": None}, "stop": {"patience": None}, "run": {**run, "plot": True}}
    config = read_back(
        {**gone, "privacy": {**terms, "clients": None, "hardlimit": True, "weigh": "equally", "report_std": 3.0}}
    )
    assert config == parse({"privacy": terms})
    with pytest.raises(ConfigError, match="go on with the version that began the run"):
        read_back({"privacy": {**terms, "clients": {"epsilon": 8.0, "delta": 1e-3}}})


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


@pytest.mark.parametrize("helps", ["helps_own.py", "helps_own/__init__.py", "helps_own/more.py"])
def test_each_folder_has_what_its_own_module_imports(helps: str, tmp_path: Path) -> None:
    source = "helps_own.more" if "more" in helps else "helps_own"
    for name in ("one", "other", "one"):
        folder = tmp_path / name
        (folder / helps).parent.mkdir(parents=True, exist_ok=True)
        (folder / helps).write_text(f"NAME = {name!r}\n")
        (folder / f"asks_{name}.py").write_text(f"from {source} import NAME\ndef said(): return NAME\n")
        assert call(f"asks_{name}:said", {}, folder=str(folder), field="model.module") == name


def test_what_is_in_neither_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be imported from .* or where Python looks"):
        call("own_things_nowhere:said", {}, folder=str(tmp_path), field="model.module")
    with pytest.raises(ConfigError, match="calling it failed: TypeError"):
        call("own_things:said", {"less": 1}, folder=written(tmp_path, "it"), field="model.module")


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
