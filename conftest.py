"""What holds for every test, the doctests in incrowd/ included (a file in tests/ would not reach those)."""

from hypothesis import settings

# The same examples whenever the same tests run: a failure is the fault of the change at hand. No deadline: machines
# differ in speed.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")
