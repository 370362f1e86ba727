import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.errors import ConfigError
from incrowd.runs.config import DEMONSTRATION, Config, MlpSection, load, parse, read_back
from incrowd.runs.data_config import MnistData
from incrowd.settings import known_keys

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
        ("privacy.epsilom=3", "privacy.epsilom = 3: there is no such key; did you mean privacy.epsilon?"),
        ("privacy.clients=3", "privacy.clients = 3: there is no such key; did you mean data.clients?"),
        ("local.xyz=3", "local.xyz = 3: there is no such key; known are local.algorithm, local.batch_size"),
        ("model.hidden=[3]", "model.hidden = [3]: 'linear' has no such key"),
        ("privacy.delta=nan", "privacy.delta = nan: give a finite number"),
        ("privacy.clip.kind=fixed", "privacy.clip.clip_norm = None: it has no default: state it"),
        ("privacy.clip.kind=fix", "privacy.clip.kind = 'fix': choose from 'normalised', 'fixed', 'per-layer'"),
        ("privacy.rounds", "set = 'privacy.rounds': write section.key=value"),
        ("privacy.rounds=@", "privacy.rounds = '@': write a TOML value"),
        ("privacy.rounds.x=1", "privacy.rounds.x = '1': rounds is a value, not a section"),
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
