"""Another user of the machine: files that somebody put where code, features, ledgers or runs are looked for.

torch's compiler keeps what it compiles in a folder of a name that everybody knows: what lay there was loaded and run.
The name of a file of features is keyed, but its checksum was a plain hash that said nothing of the name: a run learned
from the people of another data set than its ledger's. A report goes to strangers: a folder that points elsewhere, or a
shared ledger, is not to have it tell, or run, what its operator keeps back.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from incrowd._private import compiled_code
from incrowd.data import Examples
from incrowd.errors import DataError
from incrowd.learning import machine_code
from incrowd.learning.compiler import compiler_there, keep_private
from incrowd.learning.features import UnitNorm, transform
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.transform import cache_file, load_features, save_features
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.report.page import page
from incrowd.report.shown import read
from tests.privacy.ledgers import quick_folder
from tests.report import folders

pytestmark = pytest.mark.watched

PLANTS = ("anybody may write it", "another user's", "a link to another user's", "others may read it", "none there")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where compiled code goes that has no better place."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiled_code.cache_clear()
    yield tmp_path / "cache" / "incrowd"
    compiled_code.cache_clear()


def planted(kind: str, folder: Path, given_away: Callable[[Path], None]) -> Path:
    if kind == "none there":
        return folder / "nowhere"
    (folder / "planted").mkdir(mode=0o700)
    if "another user's" in kind:
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        given_away(folder / "planted")
    if "link" in kind:
        (folder / "link").symlink_to(folder / "planted")
        return folder / "link"
    (folder / "planted").chmod({"anybody may write it": 0o777, "others may read it": 0o755}.get(kind, 0o700))
    return folder / "planted"


def places() -> list[Path]:
    """Where torch looks for compiled code."""
    from torch._inductor import codecache
    from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir

    module: Any = codecache
    graphs = Path(module.FxGraphCache._get_tmp_dir())
    return [
        Path(one) for one in (cache_dir(), triton_cache_dir(0), module._HEADER_DIR, module._HEADER_LOCK_DIR, graphs)
    ]


@pytest.mark.parametrize("kind", PLANTS)
def test_torch_loads_nothing_from_a_folder_that_is_not_ours(
    kind: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_away: Callable[[Path], None]
) -> None:
    folder = planted(kind, tmp_path, given_away)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    assert any(place.is_relative_to(folder) for place in places())  # as torch does by itself
    assert keep_private() == home / "torch"
    assert all(place.is_relative_to(home) for place in places())
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_without_a_private_place_code_is_kept_for_this_process_alone(home: Path) -> None:
    home.mkdir(parents=True)
    home.chmod(0o777)
    folder = compiled_code("torch")
    assert not folder.is_relative_to(home)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


COMPILED = """
import torch
from incrowd.learning import machine_code
from incrowd.learning.compiler import compiled
def step(x):
    return x * 2 + 1
assert compiled(step)(torch.ones(3)).tolist() == [3, 3, 3]
"""


@pytest.mark.slow
def test_a_compilation_leaves_alone_what_others_have_put_into_the_temporary_directory(tmp_path: Path) -> None:
    if not compiler_there():
        pytest.skip("there is no C++ compiler: apt-get install g++")
    public, private = tmp_path / "tmp", tmp_path / "cache"
    public.mkdir()
    public.chmod(0o1777)
    names = {**os.environ, "TMPDIR": str(public), "XDG_CACHE_HOME": str(private)}
    names.pop("TORCHINDUCTOR_CACHE_DIR", None)
    asked = "from torch._inductor.runtime.cache_dir_utils import default_cache_dir as d; print(d())"
    told = subprocess.run([sys.executable, "-c", asked], env=names, capture_output=True, text=True, check=True)
    plant = Path(told.stdout.strip())
    assert plant.parent == public
    plant.mkdir(exist_ok=True)
    plant.chmod(0o777)
    subprocess.run([sys.executable, "-c", COMPILED], env=names, check=True, capture_output=True)
    assert not [one for one in plant.rglob("*") if one.is_file()]
    assert list((private / "incrowd" / "torch").rglob("*.so"))
    assert list((private / "incrowd" / "torch").rglob("*.gch"))


def doubled(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("kind", ["anybody may write it", "another user's", "a link to another user's", "ours"])
def test_numba_loads_nothing_from_a_folder_that_is_not_ours(
    kind: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_away: Callable[[Path], None]
) -> None:
    folder = planted(kind, tmp_path, given_away)
    settings: Any = numba.config
    monkeypatch.setattr(settings, "CACHE_DIR", str(folder))
    assert machine_code.kept(__file__)(doubled)(4) == 8
    kept = [folder, home / "numba"]
    assert [bool(list(one.rglob("*.nbi"))) for one in kept] == ([True, False] if kind == "ours" else [False, True])
    assert str(folder) == settings.CACHE_DIR


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_machine_code_beside_its_source_is_as_safe_as_the_source(mode: int, home: Path, tmp_path: Path) -> None:
    source = tmp_path / "loops.py"
    source.write_text("def tripled(number):\n    return 3 * number\n")
    names: dict[str, Any] = {}
    exec(compile(source.read_text(), source, "exec"), names)  # noqa: S102  # as an import does
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__").chmod(mode)
    assert machine_code.kept(str(source))(names["tripled"])(2) == 6
    assert bool(list((tmp_path / "__pycache__").glob("*.nbi"))) == (mode == 0o755)
    assert bool(list(home.rglob("*.nbi"))) == (mode == 0o777)


def people(seed: int) -> Examples:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(40, 5)).astype(np.float32)
    return Examples(features=features, labels=np.zeros(40, np.int64), classes=2)


THESE, OTHERS = people(1), people(2)


def features(examples: Examples, folder: Path | None = None) -> Values:
    found: Values = transform(UnitNorm(), examples, cache=folder).features
    return found


def place_of(folder: Path, examples: Examples) -> Path:
    return cache_file(folder, UnitNorm(), examples, alone=True)


def test_a_file_of_other_people_under_this_name_is_not_taken(tmp_path: Path) -> None:
    expected = features(THESE)
    features(THESE, tmp_path)
    features(OTHERS, tmp_path)
    place_of(tmp_path, OTHERS).replace(place_of(tmp_path, THESE))
    assert np.array_equal(features(THESE, tmp_path), expected)
    place_of(tmp_path, THESE).unlink()
    features(OTHERS, tmp_path)
    place_of(tmp_path, THESE).symlink_to(place_of(tmp_path, OTHERS))
    assert np.array_equal(features(THESE, tmp_path), expected)


def plainly_checked(path: Path, array: Values) -> None:
    """As anybody can write it."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode() + array.tobytes()).digest()
    with path.open("wb") as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)
        stream.write(digest)


def asking_for(shape: tuple[int, ...]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
            stream.write(bytes(100))

    return write


@pytest.mark.parametrize(
    "put",
    [
        lambda path: plainly_checked(path, np.zeros((40, 5), np.float32)),
        lambda path: plainly_checked(path, np.zeros((41, 5), np.float32)),
        lambda path: plainly_checked(path, np.full((40, 5), np.nan, np.float32)),
        asking_for((2**70, 5)),
        asking_for((2**62, 5)),
        asking_for((-1, 5)),
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
    ],
    ids=["zeros", "one more", "no numbers", "endless", "large", "less than nothing", "a pipe", "a device"],
)
def test_what_others_have_put_there_is_computed_anew(tmp_path: Path, put: Callable[[Path], None]) -> None:
    path = place_of(tmp_path, THESE)
    put(path)
    assert np.array_equal(features(THESE, tmp_path), features(THESE))
    assert path.is_file()
    assert not path.is_symlink()


def test_control_what_one_has_saved_is_taken(tmp_path: Path) -> None:
    mine = np.ones((40, 5), np.float32)
    save_features(place_of(tmp_path, THESE), mine)
    assert np.array_equal(features(THESE, tmp_path), mine)


def test_what_another_user_has_sealed_is_computed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place_of(tmp_path, THESE)
    with monkeypatch.context() as another:
        another.setenv("INCROWD_STATE", str(tmp_path / "another's"))
        save_features(path, np.ones((40, 5), np.float32))
        assert load_features(path) is not None
    assert load_features(path) is None
    assert np.array_equal(features(THESE, tmp_path), features(THESE))


PLANTED = "ward-7-patients-of-doctor-who"


@pytest.fixture(scope="module")
def run() -> Iterator[Path]:
    with quick_folder() as place:
        yield folders.simulated(place / "run")


def test_labels_notes_keys_and_names_of_a_shared_ledger_stay_there(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    budget = Budget(epsilon=8.0, delta=1e-5)
    event = GaussianDpEvent(10.0)
    with Ledger.open(
        path, budget=budget, relation=Relation.REPLACE_ONE, data_identity=f"/home/{PLANTED}/cohort.csv"
    ) as ledger:
        ledger.reserve([(event, 3)], label=PLANTED)
        ledger.charge(event, key=f"{PLANTED}: 1", note={"why": PLANTED, "round": 4}, reservation=PLANTED)
    told = json.dumps(read(path).to_json()) + page([read(path)])
    assert PLANTED in path.read_bytes().decode("latin-1")  # the control: it is in the ledger
    assert PLANTED not in told
    assert "cohort.csv" in told
    assert "round 5" in told


def test_a_folder_that_points_elsewhere_shows_nothing_of_there(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    planted = tmp_path / "planted"
    shutil.copytree(run, planted)
    for name in ("summary.json", "run.sqlite", "evaluation.json", "audit.json"):
        shutil.copytree(run, planted, dirs_exist_ok=True)
        (planted / name).unlink(missing_ok=True)
        (planted / name).symlink_to(other / name if (other / name).exists() else "/etc/passwd")
        with pytest.raises(DataError, match="no plain file"):
            read(planted)
        (planted / name).unlink()
    shutil.copytree(run, planted, dirs_exist_ok=True)
    assert read(planted).over  # the control: without the links it can be read


def test_a_ledger_that_is_pointed_at_is_not_shown_unless_it_is_the_run_s(run: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.sqlite"
    identity = f"{PLANTED}.csv"
    Ledger.open(
        theirs, budget=Budget(epsilon=1.0, delta=1e-5), relation=Relation.REPLACE_ONE, data_identity=identity
    ).close()
    planted = tmp_path / "planted"
    shutil.copytree(run, planted)
    payer = json.loads((planted / "ledger.json").read_text())
    (planted / "ledger.json").write_text(json.dumps(payer | {"path": str(theirs)}))
    assert read(planted).ledgers == [{"party": "", "problem": "another", "lines": []}]
    assert PLANTED in page([read(theirs)])  # the control: named by its owner it is


@pytest.mark.parametrize(
    "config", ["[]", "{}", "no JSON", '"<script>"', "[" * 100_000, '{"run": {}, "data": 3, "privacy": null}']
)
def test_settings_that_nobody_wrote_are_refused_by_the_folder_s_name(run: Path, tmp_path: Path, config: str) -> None:
    planted = tmp_path / "planted"
    shutil.copytree(run, planted)
    with closing(sqlite3.connect(planted / "run.sqlite")) as database, database:
        database.execute("UPDATE settings SET value = ? WHERE name = 'config'", (config,))
    with pytest.raises(DataError, match="planted"):
        read(planted)
