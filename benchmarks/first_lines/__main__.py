"""Counts it: python -m first_lines (in benchmarks/)."""

from first_lines.count import table

print(table())
