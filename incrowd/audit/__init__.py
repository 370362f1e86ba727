"""Attacks on our own pipelines: what somebody who wants to know really finds out, beside what was promised."""
