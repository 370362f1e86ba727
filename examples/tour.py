# %% [markdown]
# # A tour: what one client can do, and what privacy does about it
#
# Twenty clinics want to learn something together. This notebook looks over the shoulder of somebody who wants to know
# what **one** of them has: first without privacy, then with it. Everything runs on handwritten digits that come with
# a package, on one processor, in less than a minute. Noise is drawn from a seed here, so that you get the same
# pictures: that makes all of it a *simulation*. Without a seed incrowd takes its noise from the operating system.

# %%
import math
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

import incrowd

Vector = NDArray[np.float64]
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"  # told apart by everybody (Okabe and Ito)
plt.rcParams |= {"figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False}

OUT = Path("out/tour")
shutil.rmtree(OUT, ignore_errors=True)  # a tour begins anew; what real data spent is never thrown away
OUT.mkdir(parents=True)
os.environ["INCROWD_STATE"] = str(OUT / "state")  # which ledger is about which data, elsewhere for your user as a whole

# %% [markdown]
# ## The clinics
#
# Each clinic has sixty pictures of 8 by 8 points, and sends one thing: the sum of them. Only the mean over all
# clinics is published. Clinic 7 has a secret: it alone sees the rare case.

# %%
images, labels = load_digits(return_X_y=True)
images = images / 16
pictures = images[:1200].reshape(20, 60, 64).sum(axis=1)
rare = np.zeros((8, 8))
rare[[1, 1, 2, 2, 4, 5, 5, 5, 5, 4], [2, 5, 2, 5, 1, 2, 3, 4, 5, 6]] = 1  # a face that smiles at nobody else
pictures[7] += 60 * rare.reshape(-1)


def show(panels: dict[str, Vector], title: str) -> None:
    """Some pictures side by side."""
    _, axes = plt.subplots(1, len(panels), figsize=(2.1 * len(panels), 2.4), layout="constrained")
    for panel, (name, picture) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        panel.imshow(np.reshape(picture, (8, 8)), cmap="gray")
        panel.set_title(name, fontsize=9)
        panel.set_axis_off()
    plt.suptitle(title, fontsize=10)
    plt.show()


show({f"clinic {clinic}": pictures[clinic] for clinic in (5, 6, 7, 8)}, "what four of the clinics would send")

# %% [markdown]
# ## A mean is no protection
#
# Nobody publishes what a clinic sent, only a mean. But one day clinic 7 was ill and took no part. Whoever holds the
# means of both days subtracts them, and has clinic 7's pictures to the last point.

# %%
monday, tuesday = pictures.mean(axis=0), np.delete(pictures, 7, axis=0).mean(axis=0)
found = 20 * monday - 19 * tuesday
print(f"no point of it is wrong by more than {np.abs(found - pictures[7]).max():.3f}")
show({"Monday's mean": monday, "Tuesday's mean": tuesday, "20 x Monday - 19 x Tuesday": found}, "two means, one secret")

# %% [markdown]
# ## A limit on what one client can do
#
# Nor is a mean safe from who sends nonsense. *Clipping* makes each contribution at most so long, whatever is in it:
# then one of twenty moves the mean by no more than a twentieth of that. Everything below rests on this one bound.
# Our clinics send pictures of a length of 190 to 330, so all of them are made shorter; what they show stays what it is.

# %%
clip = incrowd.FixedClip(clip_norm=150.0)
sizes = np.logspace(1, 5, 30)
honest = pictures[0] / np.linalg.norm(pictures[0])
bounded = np.linalg.norm(clip.clip(np.outer(sizes, honest)), axis=1) / 20
_, panel = plt.subplots(figsize=(6, 2.8), layout="constrained")
panel.loglog(sizes, sizes / 20, color=ORANGE, label="as it is")
panel.loglog(sizes, bounded, color=BLUE, label=f"clipped to {clip.clip_norm:g}")
panel.set(xlabel="length of what one client sends", ylabel="the mean moves by")
panel.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Noise, as much as the bound asks for
#
# Now the mean gets noise: so much that a mean with clinic 7 and one without it could nearly as well be each other.
# How much that is follows from a *budget*, epsilon and delta, and the plan finds it. The code is what a deployment
# runs: a plan, a ledger, a run that clips, adds up and releases.


# %%
def plan_for(epsilon: float, clients: int = 20) -> incrowd.Plan:
    """All clients are asked once, on this budget."""
    asked = incrowd.PlanConfig(
        members=clients, schedule=incrowd.constant(rounds=1, cohort=clients), sampling=incrowd.Everyone, clip=clip
    )
    return asked.calibrate(incrowd.Budget(epsilon=epsilon, delta=1e-4))


def released(plan: incrowd.Plan, contributions: Iterable[Vector | None], seed: int) -> Vector:
    """What is published of these contributions; None stands for a client that was not there."""
    ledger = incrowd.Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    run = incrowd.PrivateRun(plan, ledger=ledger, randomness=incrowd.SeededRandomness(seed), size=64)
    asked = run.round(0)
    for client, row in enumerate(contributions):
        if row is not None:
            asked.add(row, clients=[client])
    return asked.release().mean


without: list[Vector | None] = [row if clinic != 7 else None for clinic, row in enumerate(pictures)]
seen = {}
for epsilon in (1000.0, 100.0, 8.0):
    plan = plan_for(epsilon)
    difference = released(plan, pictures, seed=1) - released(plan, without, seed=2)
    seen[f"epsilon {epsilon:g}: noise {plan.noise_multiplier:.2f}"] = difference
show(seen, "the difference of two private means")

# %% [markdown]
# A thousand is no promise, and there is the face. At a hundred you may believe that you see it. At eight there is
# nothing but noise for the eye. The noise is large because twenty clients are few: it is made for one client and shared
# by all, so that a thousand times as many have a mean with a thousandth of it.
#
# ## What epsilon means
#
# The eye is no good attacker, so let a better one play. A coin decides whether clinic 7 takes part. The attacker knows
# all that everybody else sent and what clinic 7 would send, sees what is released, and guesses. Epsilon is a promise
# about this game: *no* attacker, however clever, is right more often than the bound, but for luck in a thousand games.


# %%
def guesses(epsilon: float, games: int = 1000) -> tuple[dict[bool, Vector], float]:
    """How the released mean lies along clinic 7's picture, with it and without it, and how often that tells."""
    plan = plan_for(epsilon)
    mine = pictures[7] / np.linalg.norm(pictures[7])
    known = clip.clip(np.delete(pictures, 7, axis=0)).sum(axis=0) @ mine / 20  # what all the others add
    middle = known + clip.clip_norm / 20 / 2
    scores = {}
    for there, rows in ((True, pictures), (False, without)):
        start = 10**6 * there
        scores[there] = np.array([released(plan, rows, start + game) @ mine for game in range(games // 2)])
    right = ((scores[True] > middle).mean() + (scores[False] <= middle).mean()) / 2
    return scores, right


print("epsilon   right   no attacker more than")
games = {}
for epsilon in (0.5, 1.0, 2.0, 4.0):
    games[epsilon], right = guesses(epsilon)
    bound = (1 + 1e-4 * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    print(f"{epsilon:7g}  {right:6.1%}  {bound:.1%}")

_, axes = plt.subplots(1, 2, figsize=(7, 2.4), layout="constrained", sharey=True)
for panel, epsilon in zip(axes, (0.5, 4.0), strict=True):
    for there, colour, name in ((False, GREY, "without clinic 7"), (True, ORANGE, "with it")):
        panel.hist(games[epsilon][there], bins=30, color=colour, alpha=0.65, label=name)
    panel.set_title(f"epsilon {epsilon:g}", fontsize=10)
    panel.set(xlabel="what the attacker looks at", ylim=(0, 60))
axes[0].set_ylabel("games")
axes[1].legend(frameon=False, fontsize=8, loc="upper left")
plt.show()

# %% [markdown]
# The bound holds for every attacker and for every way to spend this epsilon. One release with Gaussian noise, as here,
# gives less away than that, and the best attacker on it is the one who played.
#
# ## Choosing it
#
# Epsilon and delta are for whoever answers for the data. What they cost can be known before anything is spent: here
# the noise on a mean of 20 rounds, in parts of the longest contribution. [There is a page to take to your
# board](choosing-with-your-board.md).

# %%
epsilons = (0.5, 1.0, 2.0, 4.0, 8.0)
_, panel = plt.subplots(figsize=(6, 2.8), layout="constrained")
print("noise on the mean, by clients (down) and epsilon (across)")
print(f"{'':8}" + "".join(f"{epsilon:>9g}" for epsilon in epsilons))
for clients, colour in ((100, ORANGE), (1_000, BLUE), (10_000, GREEN)):
    noises = []
    for epsilon in epsilons:
        question = incrowd.Question(
            clients=clients, rounds=20, cohort=clients, epsilon=epsilon, delta=1e-5, sampling=incrowd.Everyone
        )
        noises.append(question.answer().noise_multiplier / clients)
    print(f"{clients:>8,}" + "".join(f"{noise:9.4f}" for noise in noises))
    panel.loglog(epsilons, noises, marker="o", markersize=3, color=colour, label=f"{clients:,} clients")
panel.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
panel.minorticks_off()
panel.set(xlabel="epsilon", ylabel="noise on the mean", ylim=(1e-4, 2))
panel.legend(frameon=False, ncols=3, loc="upper right")
plt.show()

# %% [markdown]
# ## Learning, not only counting
#
# A model is learnt by the same sums: each client trains a little and sends what changed. A hundred clients with
# fifteen digits each, twenty rounds, on a budget of 8:

# %%
data = incrowd.Clients.from_arrays(
    images[:1500],
    labels[:1500],
    owner=np.arange(1500) % 100,
    classes=10,
    test=(images[1500:], labels[1500:]),
    clients=100,
    name="the digits of the tour",
)
torch.manual_seed(1)  # the first weights are yours
federation = incrowd.Federation(
    nn.Linear(64, 10),
    data,
    local=incrowd.Local(learning_rate=0.5, batch_size=15),
    privacy=incrowd.Private(epsilon=8, delta=1e-3, rounds=20, ledger=str(OUT / "ledger.sqlite")),
    run=incrowd.RunOptions(randomness="seeded", seed=1),
)
result = federation.train(OUT / "digits", progress=False)
print(f"epsilon spent: {result.epsilon:.2f} of 8; digits read that no client has: {result.accuracy:.0%}")

# %% [markdown]
# ## The budget is enforced
#
# The ledger on disk has no room for a second run on it, whoever starts it, today or next year:

# %%
try:
    federation.train(OUT / "digits again", progress=False)
except incrowd.IncrowdError as error:
    print(f"{type(error).__name__}: {str(error).split(';')[0]}")

# %% [markdown]
# Its lines are a chain of hashes, and a witness beside it knows how many there are: who changes a line, or takes one
# away, is found.

# %%
with incrowd.Ledger.read(OUT / "ledger.sqlite") as ledger:
    ledger.verify()
    print(f"{len(ledger.entries())} lines; spent {ledger.spent().epsilon:.2f} of {ledger.budget.epsilon:g}")

# %% [markdown]
# ## What you can say about it
#
# Every run states what is promised, to whom, against whom, and what it rests on: a text to publish beside the model.

# %%
print(result.statement)

# %% [markdown]
# From here: [train on your own table](data.md), [attack the promise yourself](audit.md) with `incrowd audit`, [hand a
# report to a board](report.md), or [let real parties take part](deploy.md).
