"""A table of patients' visits: what its columns mean is stated, each patient is protected with all visits.

Run: python examples/patients.py
"""

import csv
import sys
from pathlib import Path

import numpy as np
from torch import nn

import incrowd

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/patients")
table = folder.with_suffix(".csv")
table.parent.mkdir(parents=True, exist_ok=True)
made = np.random.default_rng(0)  # made-up visits of 300 patients
with table.open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["patient", "age", "sex", "smoker", "ill"])
    for visit in range(3000):
        age, sex, smoker = made.integers(20, 90), made.choice(["f", "m"]), made.random() < 0.3
        ill = (age - 55) / 20 + smoker + made.normal(0, 0.5) > 0
        writer.writerow([visit % 300, age, sex, "yes" if smoker else "no", "yes" if ill else "no"])

visits = incrowd.Table(
    file=str(table),
    client="patient",
    label="ill",
    classes=("no", "yes"),
    columns={"age": {"range": [18, 100]}, "sex": {"levels": ["f", "m"]}, "smoker": "yes/no"},
    holdout_clients=0.1,
    public=True,  # of a private table state the number of its clients instead, say clients=300
)
federation = incrowd.Federation(
    nn.Linear(4, 2),
    visits,
    local=incrowd.Local(learning_rate=0.5, batch_size=10),
    privacy=incrowd.Private(epsilon=4, delta=1e-4, rounds=20, cohort=100, sampling="poisson"),
)
result = federation.train(folder)
print(result.statement)
print(f"accuracy {result.accuracy:.3f}; of the first rows {result.predict(table)[:5]}")
