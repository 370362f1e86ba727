# Needs GNU make and Python 3.11 or newer; everything else comes into .venv. Every target starts with the installation.
PYTHON ?= python3
WORKERS ?= 2

EXTRAS := dev,docs,drawdiscard,flower,onnx,plots,redis,secure-sum,serve,train
RUN := .venv/bin/python -m
STAMP := .venv/installed

# The pins also hold where pip builds wheels apart: older pips read the first name there, newer ones (25.3) the second.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What Python compiles is kept, whatever the caller's environment says: tests start many processes, and each would
# compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow mutate lint types arrows docs smoke format check clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18

install: $(STAMP)  ## a virtual environment in .venv with every extra, at the tested versions

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into .venv (a few minutes the first time)"
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@$(RUN) pip install -qq --editable '.[$(EXTRAS)]'
	@$(RUN) incrowd.learning.warm_up  # else the first run waits for it
	@touch $@

demo: install  ## private training on embedded data: accuracy, epsilon, a plot, the statement
	@.venv/bin/incrowd train

test: install  ## the fast tests and doctests, with full branch coverage of the promise
	@$(RUN) pytest -q -n $(WORKERS) --dist worksteal -m "not slow" --cov

test-slow: install  ## the tests that take longer
	@$(RUN) pytest -q -n $(WORKERS) --dist worksteal -m slow --timeout 900

mutate: install  ## deliberate privacy bugs, each to be noticed by the tests named for it
	@$(RUN) scripts.mutate --jobs $(WORKERS)

lint: install  ## style, sizes, words, version, what an import loads
	@$(RUN) ruff check --quiet .
	@$(RUN) ruff format --quiet --check . || { echo "make format puts this right"; exit 1; }
	@$(RUN) scripts.check_sizes
	@$(RUN) scripts.check_words
	@$(RUN) scripts.check_version
	@$(RUN) scripts.check_imports

types: install  ## strict types, tests included
	@$(RUN) mypy

arrows: install  ## which room may import which
	@.venv/bin/lint-imports --no-logo

docs: install  ## the pages in docs/_build/html, warnings are errors
	@$(RUN) scripts.cli_help --check
	@$(RUN) sphinx -W --keep-going -q -b html docs docs/_build/html

smoke: install  ## the built wheel, installed without any extra, answers its commands
	@$(RUN) scripts.smoke

format: install  ## puts the layout right
	@$(RUN) ruff check --quiet --fix-only .
	@$(RUN) ruff format --quiet .

check:  ## all but the slow tests, as the continuous integration does it
	@.ci/run

clean:  ## removes what the targets made, except .venv and out/, which holds runs and their ledgers
	rm -rf dist docs/_build htmlcov .coverage .coverage.* .hypothesis .*_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
