# `make demo` and `make test` need nothing first but Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint docs audit mutate bench bench-quick clean

demo: $(VENV)/.installed-demo
	$(BIN)/scoreshield demo --output demo-output

# A file at a time on each core, one thread each: their fixtures are made once, and threads do not fight.
test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_names.py tests/test_style.py

# The documentation as a site, by MkDocs in site/ and by Zensical in site-zensical/, from one mkdocs.yml; a dead link or
# a page without a place stops it. (--quiet would hide that.)
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	SITE_DIR=site-zensical $(BIN)/python -m zensical build --strict --clean

# Every mechanism and regime at three budgets, attacked: claimed epsilon, lower bound found, what would have been found.
audit: $(VENV)/.installed-dev
	$(BIN)/scoreshield audit --own

# Mutation tests of privacy/ and the releases: hours; a run that was stopped goes on. See docs/mutation.md.
mutate: $(VENV)/.installed-mutation
	OMP_NUM_THREADS=1 $(BIN)/python tools/mutate.py run --processes 2
	OMP_NUM_THREADS=1 $(BIN)/python tools/mutate.py again --processes 2
	$(BIN)/python tools/mutate.py report

# Damaged files and arguments: each must end in one sentence. The seed is printed; failing inputs stay in tests/fuzz/corpus.
CASES ?= 100000
fuzz: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/fuzz/run.py --cases $(CASES) $(if $(SEED),--seed $(SEED))

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/release.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/projection.py
	$(BIN)/python benchmarks/decisions.py
	$(BIN)/python benchmarks/optimal.py
	$(BIN)/python benchmarks/stores.py
	$(BIN)/python benchmarks/frameworks.py

# Every experiment on its quick grid (each in about two minutes on two cores), then the results page. A run that was
# stopped goes on; `make clean` forgets the runs. DATA is the folder of the compact data sets.
DATA        ?= ../shared/data
EXPERIMENTS := dp-fr dp-rag gram-sts gram-movielens gram-vision runtime noise

bench-quick: $(VENV)/.installed-results
	@test -d $(DATA) || { echo "The compact data sets are not in $(DATA); say where with: make bench-quick DATA=/path"; exit 1; }
	for name in $(EXPERIMENTS); do \
	  $(BIN)/scoreshield bench $$name --quick --data-dir $(DATA) --out runs/$$name || exit 1; \
	done
	$(BIN)/scoreshield report results --runs runs --data-dir $(DATA) --markdown docs/results.md \
	  --images docs/images/results --html runs/results.html

clean:
	rm -rf $(VENV) site site-zensical .cache runs demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis mutants

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ScoreShield needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: $(BIN)/python pyproject.toml
	$(PIP) install --editable '.[demo]'
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml
	$(PIP) install --editable '.[dev]'
	@touch $@

$(VENV)/.installed-mutation: $(BIN)/python pyproject.toml
	$(PIP) install --editable '.[dev,mutation]'
	@touch $@

$(VENV)/.installed-results: $(BIN)/python pyproject.toml
	$(PIP) install --editable '.[bench]'
	@touch $@

$(VENV)/.installed-bench: $(BIN)/python pyproject.toml
	$(PIP) install --editable '.[dev,peers]'
	@touch $@
