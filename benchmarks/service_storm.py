"""Load on `incrowd serve` for many minutes, its server killed and started again: what is gone, and how memory grows.

    python benchmarks/service_storm.py --minutes 30
    python benchmarks/service_storm.py --minutes 30 --redis --redis-kills --json

Exit status 1 where something that was acknowledged is gone and should not be.
"""

import argparse
import json
import sys

from contest.storm import Storm


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kills", type=int, default=10, help="how often the server is killed meanwhile")
    parser.add_argument("--weights", type=int, default=387)
    parser.add_argument("--keep-every", type=float, default=5.0, help="seconds between two keeps of a pool in memory")
    parser.add_argument("--redis", action="store_true", help="a pool in Redis instead of memory")
    parser.add_argument("--redis-kills", action="store_true", help="Redis is killed as well, each time")
    parser.add_argument("--json", action="store_true", help="figures for a program")
    given = parser.parse_args()
    storm = Storm(
        seconds=60 * given.minutes,
        kills=given.kills,
        redis=given.redis,
        redis_kills=given.redis_kills,
        weights=given.weights,
        keep_every=given.keep_every,
    )
    report = storm.run(lambda line: print(line, file=sys.stderr, flush=True))
    found = report.to_dict()
    if given.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:20} {value}" for name, value in found.items() if name != "lives"))
    sys.exit(0 if report.kept_its_word else 1)


if __name__ == "__main__":
    main()
