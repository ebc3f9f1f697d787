# `make demo` and `make test` need nothing first but Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint bench clean

demo: $(VENV)/.installed-demo
	$(BIN)/scoreshield demo --output demo-output

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/release.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/projection.py
	$(BIN)/python benchmarks/decisions.py
	$(BIN)/python benchmarks/optimal.py

clean:
	rm -rf $(VENV) demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis

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

$(VENV)/.installed-bench: $(BIN)/python pyproject.toml
	$(PIP) install --editable '.[dev,peers]'
	@touch $@
