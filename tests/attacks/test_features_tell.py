"""Whether an offer is taken up, or a run begins, tells nothing of an example, whatever features it asks for.

Attack: who offers names the features. Numbers too large for them (a square that float32 cannot hold) had no features,
so that the party failed: yes and no told of one example's numbers. `tests/learning/test_features.py` tries such numbers
with each map.
"""

from pathlib import Path

import numpy as np
import pytest

from incrowd.data import Examples
from incrowd.errors import ConfigError
from incrowd.federation import Federation
from incrowd.learning.features import from_callable, transform
from tests.parties.members import Hospitals, MemberLine, party_text

OFFERED = ("", 'name = "unit"\ncentred = true\n', 'name = "energies"\noctave = 0\nstride = 2\n')


def answers(hospitals: Hospitals, largest: float) -> list[str]:
    """What amber says to each offer, when this is the largest pixel of its examples."""
    (hospitals.folder / "own_arrays.py").write_text(
        "import numpy as np\ndef load(largest):\n    g = np.random.default_rng(1)\n"
        "    x = g.random(size=(9, 8, 8)).astype(np.float32)\n    x[4] *= np.float32(largest)\n"
        "    return x, g.integers(0, 3, 9)\n"
    )
    own = f'function = "own_arrays:load"\nfolder = ".."\nclasses = 3\narguments = {{largest = {largest}}}\n'
    text = party_text("amber", data=own, columns="").replace("[data.columns]\n", "")
    (hospitals.folder / "amber" / "party.toml").write_text(text)
    data = '[data]\nname = "parties"\nfederation = "arrays"\nenrolled = "enrolled"\nshape = [8, 8]\nclasses = 3\n'
    rest = '[privacy]\nepsilon = 50.0\ndelta = 1e-5\nrounds = 2\n[run]\nrandomness = "seeded"\nseed = 1\n'
    found = []
    for words in OFFERED:
        (hospitals.folder / "there.toml").write_text(data + (words and f"[features]\n{words}") + rest)
        federation = Federation.from_settings(hospitals.folder / "there.toml")
        line = MemberLine(hospitals, gone={"birch", "cedar"})
        found.append(hospitals.server().try_over(line, federation)["amber"])
        line.close()
    return found


def test_an_offer_of_features_is_answered_alike_whatever_the_numbers_are(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    assert {largest: answers(hospitals, largest) for largest in (1.0, 3e38)} == {
        largest: ["yes"] * len(OFFERED) for largest in (1.0, 3e38)
    }


def test_control_a_map_in_which_examples_meet_is_refused() -> None:
    values = np.random.default_rng(0).random((32, 16, 16)).astype(np.float32)
    mixing = from_callable(lambda several: several.reshape(len(several), -1) - several.mean(), name="mixing")
    with pytest.raises(ConfigError, match="change with the examples around it"):
        transform(mixing, Examples(features=values, labels=np.zeros(32, np.int64), classes=2))
