"""What it saves to keep what frozen layers make of records: a Linear head on two frozen encoder layers, made-up tokens.

    python benchmarks/frozen_records.py              6,000 records
    python benchmarks/frozen_records.py --records 60000

Every step takes all records; the first is the one in which each goes through the frozen layers by itself.
"""

import argparse
import time

from torch import Tensor

from contest.works import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER, RANDOMNESS, WORKS, Task
from incrowd.learning import BatchedRecords, Descent, Execution, Records, one_thread
from incrowd.privacy.mechanism import RecordTraining


def nothing(total: Tensor) -> Tensor:
    """No noise: only the work is measured."""
    return total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    count = arguments.records
    task = Task(work=WORKS["head"], batch_size=100)
    features, labels = task.data.examples.as_tensors()
    records = Records(features=features[:count], labels=labels[:count])
    training = RecordTraining(
        steps=1,
        sampling_prob=1.0,
        expected_batch=count,
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
        physical_batch=200,
    )
    with one_thread():
        for name, contributions in (("not kept", 0.0), ("kept", 20.0 * count)):
            execution = Execution(contributions=contributions, compile="never")
            descent = Descent(learning_rate=LEARNING_RATE)
            engine = BatchedRecords(task.work.model(), records, descent, execution=execution)
            for number in range(arguments.repeats):
                begin = time.process_time()
                engine.train(task.start, training, noise=nothing, batches=RANDOMNESS.stream("batches", number))
                taken = time.process_time() - begin
                print(f"{name:<10}step {number + 1}{1e3 * taken / count:>10.3f} ms a record")


if __name__ == "__main__":
    main()
