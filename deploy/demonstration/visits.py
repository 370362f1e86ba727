"""Made-up visits of one hospital, the same whenever it is asked: python visits.py NAME > visits.csv."""

import random
import sys

ROWS = 400


def main() -> None:
    """Patients of high age and dose come back."""
    draw = random.Random(sys.argv[1])  # noqa: S311 - it makes up patients
    print("age,dose,sex,readmitted")
    for _ in range(ROWS):
        age, dose = draw.randint(20, 90), draw.uniform(0, 10)
        print(f"{age},{dose:.1f},{draw.choice('fm')},{'yes' if age + 10 * dose > 100 else 'no'}")


if __name__ == "__main__":
    main()
