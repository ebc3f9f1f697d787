# `make demo` and `make test` need nothing first but Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-engines lint lint-code lint-types lint-names docs packages extras audit mutate bench bench-quick clean lock locked wheel lowest pythons workflows sbom image

demo: $(VENV)/.installed-demo
	$(BIN)/scoreshield demo --output demo-output

# A file at a time on each core, one thread each: their fixtures are made once, and threads do not fight.
test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

# Spark (491 MB, with a Java of the system) and Ray (240 MB) in an environment of their own, which takes minutes to make.
ENGINES := .venv-engines
test-engines: $(ENGINES)/.installed
	OMP_NUM_THREADS=1 $(ENGINES)/bin/python -m pytest tests/distributed/test_spark.py tests/distributed/test_ray.py

# In parts, for `make --jobs 2 lint`.
lint: lint-code lint-types lint-names

lint-code: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

lint-types: $(VENV)/.installed-dev
	$(BIN)/mypy

lint-names: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/test_names.py tests/test_style.py

# The documentation as a site, by MkDocs in site/ and by Zensical in site-zensical/, from one mkdocs.yml; a dead link or
# a page without a place stops it. (--quiet would hide that.)
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	SITE_DIR=site-zensical $(BIN)/python -m zensical build --strict --clean

# The packages for LangChain, LlamaIndex and Haystack: built, installed into empty environments and tested there.
packages: $(BIN)/python
	$(BIN)/python tools/build_packages.py

# Each extra of a framework or store in an empty environment, where its page and its examples run.
extras: $(VENV)/.installed-dev
	$(BIN)/python tools/check_extras.py --install

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
# stopped goes on; `make clean` forgets the runs. DATA is the folder of the compact data sets (docs/data.md).
DATA        ?= ../shared/data
EXPERIMENTS := dp-fr dp-rag gram-sts gram-movielens gram-vision runtime noise

bench-quick: $(VENV)/.installed-results
	@test -d $(DATA) || { echo "The compact data sets are not in $(DATA); say where with: make bench-quick DATA=/path"; exit 1; }
	for name in $(EXPERIMENTS); do \
	  $(BIN)/scoreshield bench $$name --quick --data-dir $(DATA) --out runs/$$name || exit 1; \
	done
	$(BIN)/scoreshield report results --runs runs --data-dir $(DATA) --markdown docs/results.md \
	  --images docs/images/results --html runs/results.html

# uv.lock: every version of every extra, from the public index. `make locked` installs exactly these, with uv.
lock: $(VENV)/.installed-packaging
	$(BIN)/uv lock --no-config

locked:
	uv sync --frozen --extra dev --extra packaging
	@touch $(VENV)/.installed-dev $(VENV)/.installed-packaging

# What users install: sdist and wheel, compared with git, and the core tests against the wheel in an empty environment.
wheel: $(VENV)/.installed-packaging
	$(BIN)/python tools/check_install.py wheel $(if $(TAG),--tag $(TAG))

# The same tests with the lowest versions that pyproject.toml allows; with EXTRAS, the tests of these: make lowest EXTRAS=all
lowest: $(VENV)/.installed-packaging
	$(BIN)/python tools/check_install.py lowest $(EXTRAS)

# The same tests with every Python at hand, or with PYTHONS="/path/to/python3.14 ..."
pythons: $(VENV)/.installed-packaging
	$(BIN)/python tools/check_install.py pythons $(PYTHONS)

# zizmor reads the workflows of this repository, and the one that users copy.
workflows: $(VENV)/.installed-packaging
	$(BIN)/zizmor --offline --persona pedantic .github examples/audit-workflow.yml

# The packages of the core install, as a bill of materials (CycloneDX).
sbom:
	uv export --frozen --no-config --no-dev --preview-features sbom-export --format cyclonedx1.5 --quiet --output-file sbom.cdx.json

# The container image, and its command in a container without network, rights or a writable root.
ENGINE ?= docker
image:
	$(ENGINE) build --tag scoreshield:local .
	$(ENGINE) run --rm --read-only --cap-drop ALL --security-opt no-new-privileges --network none --tmpfs /tmp scoreshield:local --version

clean:
	rm -rf $(VENV) $(ENGINES) site site-zensical .cache runs dist sbom.cdx.json demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis mutants

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ScoreShield needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(ENGINES)/.installed: pyproject.toml
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[ray,spark]' 'hypothesis>=6.100' 'pytest>=8'
	@touch $@

$(VENV)/.installed-demo: $(BIN)/python pyproject.toml
	$(PIP) install --editable '.[demo]'
	@touch $@

# Python compiles the modules that a test imports; compiling all of these packages takes longer than that.
$(VENV)/.installed-dev: $(BIN)/python pyproject.toml
	$(PIP) install --no-compile --editable '.[dev]'
	@touch $@

$(VENV)/.installed-mutation: $(BIN)/python pyproject.toml
	$(PIP) install --editable '.[dev,mutation]'
	@touch $@

$(VENV)/.installed-packaging: $(BIN)/python pyproject.toml
	$(PIP) install --editable '.[packaging]'
	@touch $@

$(VENV)/.installed-results: $(BIN)/python pyproject.toml
	$(PIP) install --editable '.[bench]'
	@touch $@

$(VENV)/.installed-bench: $(BIN)/python pyproject.toml
	$(PIP) install --editable '.[dev,peers]'
	@touch $@
