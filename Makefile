# make demo   a fresh machine to a trained model: optimize, compile, run on 4 local ranks, picture
#             (SMALL=1: a tiny model, in about a minute)
# make test   lint, types and tests
# make docs   the site, in build/site: all links and public names checked, all snippets tried
# make coverage  the tests, and the lines that none of them runs (compiled kernels cannot be seen)
# make nightly  the tests marked slow, properties on ten times the examples, random checks
# make wheel  wheel and sdist of the last commit, in dist: checked, and tried in clean environments
#             (PYTHONS="python3.12 ...": with these interpreters; TORCH=1: with torch, too)
# make bench  the benchmarks, hours, compared with their records
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Modules of torch are compiled when they are first imported. If no bytecode may be written, each of
# the many processes of the tests compiles them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test lint docs coverage nightly wheel bench clean

# Compiling all modules here would take half a minute.
setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt -e '.[runtime,models,dev]'
	touch $@

demo: setup
	$(BIN)/python -m examples.demo $(if $(SMALL),--small)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.size
	$(BIN)/python -m benchmarks --report --check

# Kernels are compiled, for a minute, beside the checks of types: random checks use nearly all.
# Files run in the order of their names: pytest-xdist would leave those with few, long tests to the
# end. Tests that launch processes run after the others, three files at a time: they mostly wait for
# one another.
test: setup
	($(BIN)/python -m tests.fuzz --count 20; $(BIN)/python -m tests.property.small_exact --count 20) \
		> /dev/null 2>&1 & $(MAKE) lint && wait
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore tests/distributed --ignore tests/parity --ignore tests/failures
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder tests/failures tests/parity tests/distributed

# Snippets that need no torch run as a reader would type them; the others are marked in the pages.
docs: setup
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/tools/public_names.py
	$(BIN)/python docs/tools/snippets.py README.md docs/quick-start.md docs/tutorials/*.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

coverage: setup
	$(BIN)/python -m pytest --cov --cov-report=term

nightly: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow
	$(BIN)/python -m pytest -n 2 --hypothesis-profile thorough tests/property
	$(BIN)/python -m tests.parity
	$(BIN)/python -m tests.property.small_exact
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.failures.drawn --count 100
	$(MAKE) wheel TORCH=1

wheel: setup
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[release]'
	$(BIN)/python -m tools.wheel $(if $(TORCH),--torch) $(PYTHONS)

bench: setup
	$(BIN)/python -m benchmarks --check

clean:
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .pytest_cache
