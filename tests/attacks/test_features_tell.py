"""Whether an offer is taken up, or a run begins, tells nothing of an example, whatever features it asks for.

Attack: who offers names the features. Numbers too large for them (a square that float32 cannot hold) had no features,
so that the party failed: yes and no told of one example's numbers. And a drawing as far left as right of half a pixel
was moved one way beside others and another way alone, so that a run was refused if that drawing came first.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from incrowd.data import Examples
from incrowd.errors import ConfigError
from incrowd.federation import Federation
from incrowd.learning.features import (
    FeatureMap,
    GreyPictures,
    MadeUpPictures,
    OrientedEnergies,
    PatchResponses,
    PicturesOrPixels,
    SecondOrderEnergies,
    UnitNorm,
    Whitened,
    WithConstant,
    compose,
    from_callable,
    transform,
)
from incrowd.learning.features.centred import centred
from incrowd.learning.features.feature_map import Values
from tests.flower.members import Hospitals, MemberLine, party_text

OFFERED = ("", 'name = "unit"\ncentred = true\n', 'name = "energies"\noctave = 0\nstride = 2\n')
LARGE = (1.0, 1e18, 1e19, 1e20, 1e30, 3e38)


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
    rest = '[privacy]\nepsilon = 50.0\ndelta = 1e-5\nrounds = 2\n[run]\nplot = false\nrandomness = "seeded"\nseed = 1\n'
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


FEW = MadeUpPictures(count=20, variants=4)
ENERGIES = OrientedEnergies(octave=0, stride=2)
MAPS: dict[str, FeatureMap] = {
    "unit": UnitNorm(),
    "centred": UnitNorm(centred=True),
    "energies": ENERGIES,
    "second order": SecondOrderEnergies(stride=2),
    "patches": compose(PatchResponses(pictures=FEW, directions=16), UnitNorm()),
    "pictures": Whitened(base=GreyPictures(), shape=(8, 8), pictures=FEW, dimensions=16),
    "pixels": PicturesOrPixels(base=UnitNorm(), shape=(8, 8)),
}


def pixels(shape: tuple[int, ...]) -> Values:
    return np.random.default_rng(0).random((8, *shape)).astype(np.float32)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("largest", LARGE)
def test_every_example_has_features(name: str, largest: float) -> None:
    values = pixels((8, 8))
    values[3:5] *= np.float32(largest)
    values[4, ::2] *= -1
    labels = np.zeros(8, np.int64)
    seen = transform(compose(MAPS[name], WithConstant()), Examples(features=values, labels=labels, classes=2)).features
    usual = transform(compose(MAPS[name], WithConstant()), Examples(features=values[:3], labels=labels[:3], classes=2))
    assert np.isfinite(seen).all()
    assert (np.linalg.norm(seen, axis=1) < 1.1).all()
    assert np.array_equal(seen[:3], usual.features)  # others' are what they are without it


@pytest.mark.slow
@pytest.mark.parametrize("largest", LARGE)
def test_every_grey_picture_has_patches(largest: float) -> None:
    values = pixels((28, 28))
    usual = GreyPictures()(values[:3])
    values[3:5] *= np.float32(largest)
    values[4, ::2] *= -1
    seen = transform(GreyPictures(), Examples(features=values, labels=np.zeros(8, np.int64), classes=2)).features
    assert np.isfinite(seen).all()
    assert np.allclose(seen[:3], usual, atol=1e-6)


def symmetric(height: int, width: int, side: int, seed: int) -> Values:
    """Pictures of things that are as bright on one side as on the other, somewhere on a black ground."""
    generator = np.random.default_rng(seed)
    pictures = np.zeros((32, side, side), np.float32)
    for picture in pictures:
        thing = generator.random((height, width)).astype(np.float32)
        even = thing + thing[::-1]
        top, left = generator.integers(1, side - height), generator.integers(1, side - width)
        picture[top : top + height, left : left + width] = (even + even[:, ::-1]) / 4
    return pictures


SIZES = [(3, 1, 8), (2, 4, 8), (5, 5, 16), (6, 3, 16), (11, 13, 32), (8, 7, 28)]


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width", "side"), SIZES)
def test_a_picture_is_moved_alike_alone_and_beside_others(height: int, width: int, side: int) -> None:
    for seed in range(40):
        pictures = torch.from_numpy(symmetric(height, width, side, seed))[:, None]
        alone = torch.cat([centred(picture[None]) for picture in pictures])
        assert torch.equal(centred(pictures), alone)


@pytest.mark.slow
def test_no_picture_that_comes_first_stops_a_run() -> None:
    pictures, labels = symmetric(3, 1, 8, 0), np.zeros(32, np.int64)
    for first in range(32):
        values = np.roll(pictures, -first, axis=0)
        transform(GreyPictures(), Examples(features=values, labels=labels, classes=2))


def test_control_a_map_in_which_examples_meet_is_refused() -> None:
    values = symmetric(5, 5, 16, 0)
    mixing = from_callable(lambda several: several.reshape(len(several), -1) - several.mean(), name="mixing")
    with pytest.raises(ConfigError, match="change with the examples around it"):
        transform(mixing, Examples(features=values, labels=np.zeros(32, np.int64), classes=2))
