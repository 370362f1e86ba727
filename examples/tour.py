# %% [markdown]
# # A tour: an attack on one client, and the defence
#
# Twenty clinics learn together. In this notebook an attacker wants the data of **one** clinic: first without privacy,
# then with it. Everything runs on handwritten digits that come with a package, on one processor, in less than a
# minute. Noise comes from a seed, so that you get the same pictures: all of it is a *simulation*. Without a seed
# incrowd takes its noise from the operating system.

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
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"  # colour-blind safe (Okabe and Ito)
plt.rcParams |= {"figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False}

OUT = Path("out/tour")
shutil.rmtree(OUT, ignore_errors=True)  # only a tour: never delete the ledger of real data
OUT.mkdir(parents=True)
os.environ["INCROWD_STATE"] = str(OUT / "state")  # the registry of ledgers; by default it is in your home

# %% [markdown]
# ## The clinics
#
# Each clinic has sixty pictures of 8 by 8 points and sends their sum. Only the mean over all clinics is published.
# Clinic 7 has a secret: it alone sees the rare case.

# %%
images, labels = load_digits(return_X_y=True)
images = images / 16
pictures = images[:1200].reshape(20, 60, 64).sum(axis=1)
rare = np.zeros((8, 8))
rare[[1, 1, 2, 2, 4, 5, 5, 5, 5, 4], [2, 5, 2, 5, 1, 2, 3, 4, 5, 6]] = 1  # a face
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
# Only means are published. But on Tuesday clinic 7 took no part. An attacker subtracts the means of both days and
# recovers clinic 7's pictures to the last point.

# %%
monday, tuesday = pictures.mean(axis=0), np.delete(pictures, 7, axis=0).mean(axis=0)
found = 20 * monday - 19 * tuesday
print(f"no point of it is wrong by more than {np.abs(found - pictures[7]).max():.3f}")
show({"Monday's mean": monday, "Tuesday's mean": tuesday, "20 x Monday - 19 x Tuesday": found}, "two means, one secret")

# %% [markdown]
# ## Clipping: a bound on each client
#
# *Clipping* bounds the length of each contribution. One of twenty then moves the mean by at most a twentieth of the
# bound. All of privacy rests on this. Our clinics send pictures of a length of 190 to 330, so clipping shortens each
# and keeps its direction.

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
# ## Noise, calibrated to the bound
#
# Now the mean gets noise, so much that means with and without clinic 7 are hard to tell apart. A *budget*, epsilon and
# delta, determines the amount, and the plan calibrates it. A deployment runs the same code: a plan, a ledger, a run
# that clips, adds up and releases.


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
# Epsilon 1,000 hides nothing: you see the face. At 100 you may suspect it. At 8 you see noise. The noise is large
# because twenty clients are few. It is calibrated to one client, so with a thousand times as many clients the mean has
# a thousandth of it.
#
# ## What epsilon means
#
# The eye is a weak attacker. A better one plays this game: a coin decides whether clinic 7 takes part. The attacker
# knows all other contributions and clinic 7's, sees the release, and guesses. Epsilon bounds the share of right guesses
# of *every* attacker, up to luck in a thousand games.


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
# The bound holds for every attacker and for every way to spend this epsilon. One Gaussian release reveals less, and
# this attacker is the best one against it.
#
# ## Choosing it
#
# The owner of the data chooses epsilon and delta. You know their price before you spend anything: the table shows the
# noise on a mean of 20 rounds, as a fraction of the clip bound. [Another page is for your
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
# ## Training a model
#
# Federated learning uses the same sums: each client trains briefly and sends its update. A hundred clients with fifteen
# digits each train for twenty rounds, on a budget of 8:

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
# The ledger on disk refuses a second run on the same budget, today and next year:

# %%
try:
    federation.train(OUT / "digits again", progress=False)
except incrowd.IncrowdError as error:
    print(f"{type(error).__name__}: {str(error).split(';')[0]}")

# %% [markdown]
# Its lines are a chain of hashes, and the witness file knows their number. So `verify` finds every changed or removed
# line.

# %%
with incrowd.Ledger.read(OUT / "ledger.sqlite") as ledger:
    ledger.verify()
    print(f"{len(ledger.entries())} lines; spent {ledger.spent().epsilon:.2f} of {ledger.budget.epsilon:g}")

# %% [markdown]
# ## The statement
#
# Every run has a statement to publish beside the model: the guarantee, the protected unit, the adversary, and the
# assumptions.

# %%
print(result.statement)

# %% [markdown]
# Next steps: [train on your table](data.md), [attack the promise](audit.md) with `incrowd audit`, [write a
# report](report.md), or [train with real parties](deploy.md).
