"""What recipes spend on questions: the rounds in which nobody learns, and how much each is worth.

The *signal* says how far the sum over all clients stands above the noise of a single release
(`incrowd.privacy.plan.signal`): under more noise a question needs a larger share to be answered.
"""

from typing import Any

OF_THE_CENTRE = 0.06
"""The share of what all rounds are told that the centre of the examples is worth."""

LENGTH_OF_THE_CENTRE = 0.5
"""About as long as a client's mean is, beside an example: looked at on held-out images of Fashion-MNIST and MNIST."""

DOUBT = 0.05
"""The noise of a choice between pictures and their pixels, as a share of all clients; if that is not too dear."""

LEAST_CHOICE, MOST_CHOICE = 0.001, 0.02
"""The share of what all rounds are told that a choice is worth."""

ERROR_OF_SHARES = 0.03
"""The noise of the share of a class among all labels; if that is not too dear."""

LEAST_OF_SHARES, MOST_OF_SHARES = 0.001, 0.03
"""The share of what all rounds are told that those shares are worth."""

NOISE_OF_VOTES = 0.1
"""The noise of how many clients want a model to speak more strongly; if that is not too dear."""

LEAST_OF_VOTES, MOST_OF_VOTES = 0.001, 0.03
"""The share of what all rounds are told that those votes are worth."""


def ask_centre(how: dict[str, dict[str, Any]]) -> None:
    """Begin with a round for the centre of everyone's examples (`incrowd.learning.centre`)."""
    how["local"] |= {"centre": OF_THE_CENTRE, "centre_length": LENGTH_OF_THE_CENTRE}
    how["privacy"]["rounds"] += 1


def ask_choice(how: dict[str, dict[str, Any]], signal: float) -> None:
    """Begin with a round in which clients choose between pictures and their pixels (`incrowd.learning.choice`)."""
    how["local"]["choice"] = _worth(DOUBT, signal, LEAST_CHOICE, MOST_CHOICE)
    how["privacy"]["rounds"] += 1


def ask_class_shares(how: dict[str, dict[str, Any]], signal: float) -> None:
    """Begin with a round that asks how frequent classes are (`incrowd.learning.class_shares`)."""
    how["local"]["class_shares"] = _worth(ERROR_OF_SHARES, signal, LEAST_OF_SHARES, MOST_OF_SHARES)
    how["privacy"]["rounds"] += 1


def ask_calibration(how: dict[str, dict[str, Any]], signal: float) -> None:
    """End with a round that asks how strongly the model should speak (`incrowd.learning.calibration`)."""
    how["local"]["calibration"] = _worth(NOISE_OF_VOTES, signal, LEAST_OF_VOTES, MOST_OF_VOTES)
    how["privacy"]["rounds"] += 1


def _worth(noise: float, signal: float, least: float, most: float) -> float:
    """The share of what all rounds are told with which a mean over everyone has this noise, within limits."""
    return float(f"{min(most, max(least, (noise * signal) ** -2)):.2g}")
