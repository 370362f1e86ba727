"""What a masked answer costs one party: processor time, and bytes."""

import hashlib
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harness.seeds import Entry
from incrowd import Budget, Everyone, FixedClip, Ledger, PlanConfig, SystemRandomness, constant
from incrowd.parties import Card, Member, Roster, ShareRun, SumPlan, SumServer
from incrowd.privacy.mechanism import Whole

BUDGET = Budget(epsilon=1.0, delta=1e-9)
QUESTION = hashlib.sha256(b"weights").hexdigest()
STEP = 2.0**-40


def cost(*, parties: int, size: int, rounds: int = 5) -> Entry:
    """The least of some rounds of one party, whose peers agree on keys and stay silent; disks are in memory."""
    config = PlanConfig(
        members=parties,
        schedule=constant(rounds=rounds, cohort=parties),
        sampling=Everyone,
        noise_by="parties",
        colluders=max(1, parties // 3),
        clip=FixedClip(clip_norm=1.0),
    )
    keys = {f"party {number}": Ed25519PrivateKey.generate() for number in range(parties)}
    roster = Roster(tuple(Card.of(name, key) for name, key in keys.items()))
    plan = SumPlan(plan=config.calibrate(BUDGET), roster=roster, size=size)
    host = Ed25519PrivateKey.generate()
    server, public = SumServer(plan, key=host), host.public_key()
    part = Whole(steps=np.full(size, int(2.0**39 / np.sqrt(size))), step=STEP)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        members = {name: Member(at / name, plan, name=name, key=key, server=public) for name, key in keys.items()}
        hellos = {name: member.hello() for name, member in members.items()}
        sealed = {name: member.seal(hellos) for name, member in members.items()}
        first = members["party 0"]
        first.agree(hellos, sealed)
        ledger = Ledger.open(at / "ledger", budget=BUDGET, relation=plan.plan.relation, data_identity="made up")
        run = ShareRun(plan.plan, ledger=ledger, randomness=SystemRandomness(), label="run")
        seconds, frame = [], b""
        for number in range(rounds):
            ready = {name: member.ready(number, QUESTION) for name, member in members.items()}
            listed = server.listed(number, ready, question=QUESTION)
            begin = time.process_time()
            frame = first.answer(listed, part, pay=partial(run.share, number))
            seconds.append(time.process_time() - begin)
        ledger.close()
    return {"parties": parties, "weights": size, "milliseconds": 1e3 * min(seconds), "bytes": len(frame)}
