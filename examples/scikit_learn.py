"""A classifier as scikit-learn knows it, and patients each of whom is protected with all visits.

Run: python examples/scikit_learn.py
"""

import sys

import numpy as np

import incrowd

generator = np.random.default_rng(0)
patient = generator.integers(0, 300, 3000)  # whose visit each row is
visits = generator.uniform(-3, 3, (3000, 6))
returned = np.where(visits[:, 0] + visits[:, 1] + generator.normal(size=3000) > 0, "yes", "no")

classifier = incrowd.PrivateClassifier(
    epsilon=4, delta=1e-4, rounds=30, learning_rate=0.3, batch_size=10, ranges=(-3, 3), public=True,
    folder=sys.argv[1] if len(sys.argv) > 1 else "out/scikit-learn",
)  # fmt: skip
classifier.fit(visits[:2700], returned[:2700], groups=patient[:2700])
print(classifier.statement_)
print(f"accuracy {classifier.score(visits[2700:], returned[2700:]):.3f}; first {classifier.predict(visits[2700:2705])}")
