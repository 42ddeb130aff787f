# make demo    two runs of a small model, one with a real bug: captured, compared, explained
# make test    every test
# make crash   200 jobs killed at random moments, and what they leave
# make damage  200 damaged runs, and what the commands say of them
# make matrix  the versions of Python and torch: an environment each, an hour or two (MATRIX_ARGS: see tests/matrix.py)
# make long    what takes long: steps of a million calls, jobs of thousands of steps
# make fuzz    ten minutes of damaged files for every reader, importer and settings parser
# make sanitize  the compiled functions under AddressSanitizer and UndefinedBehaviorSanitizer
# make check   lint, format, types, import rules, built front end
# make compiled  whether capture leaves compiled jobs alone: every job, level and order; clean and faulty regions
# make docs    the documentation as a site, in build/site
# make real    two releases of a library with a public bug between them, and controls: is the fix's statement named?
# make dist    sdist and wheel in dist/, checked, the same bytes each time
# make bench   the benchmarks: a table of ratios, and bench/results/*.json
# make clean   remove what the others made
#
# Each target sets up what it needs, in $(VENV), once: a stamp named after the requirements' hash says that it is there.

VENV         ?= .venv
MSPROBE_VENV ?= .venv-msprobe
TRITON_DIR   ?= .venv-triton
PYTHON       ?= python3
PYTEST_ARGS  ?=
DEMO_ARGS    ?=
BENCH_ARGS   ?=

PY  := $(VENV)/bin/python
PIP := $(PY) -m pip install -qq --disable-pip-version-check --no-warn-script-location
hash = $(shell cat $(1) 2>/dev/null | sha256sum | cut -c1-12)

CORE_FILES  := pyproject.toml requirements/torch.txt requirements/core.txt
CORE        := $(VENV)/.stamp-core-$(call hash,$(CORE_FILES))
CHECK_TOOLS := $(VENV)/.stamp-check-$(call hash,$(CORE_FILES) requirements/check.txt)
MATRIX_TOOLS := $(VENV)/.stamp-matrix-$(call hash,requirements/matrix.txt)
DOCS_TOOLS  := $(VENV)/.stamp-docs-$(call hash,requirements/docs.txt)
DIST_TOOLS  := $(VENV)/.stamp-dist-$(call hash,requirements/dist.txt)
TEST_TOOLS  := $(VENV)/.stamp-test-$(call hash,$(CORE_FILES) requirements/test.txt)
TRITON      := $(TRITON_DIR)/.stamp-$(call hash,requirements/triton.txt)
MSPROBE     := $(MSPROBE_VENV)/.stamp-$(call hash,requirements/torch.txt requirements/msprobe.txt)

# The viewer's source. Where it has a package.json, its node modules are installed as the lock file says.
FRONTEND := frontend
ifneq ($(wildcard $(FRONTEND)/package.json),)
NODE_MODULES := $(FRONTEND)/node_modules/.stamp-$(call hash,$(FRONTEND)/package.json $(FRONTEND)/package-lock.json)
endif

.DEFAULT_GOAL := help
.PHONY: help demo docs dist test compiled real crash damage matrix long fuzz sanitize check check-python check-frontend test-frontend fix bench clean browser compiler frontend

help:
	@sed -n 's/^# \(make \)/\1/p' Makefile

demo: $(CORE)
	@$(PY) -m numscope demo $(DEMO_ARGS)

# CI=true turns what cannot be had (a browser, a compiler, msprobe) from skipped tests into a failure.
test: $(CORE) $(TEST_TOOLS) test-frontend browser compiler
	@$(MAKE) --no-print-directory -s $(MSPROBE) || { \
	    echo "make test: no msprobe in $(MSPROBE_VENV): the tests that read its fresh dumps are skipped" >&2; test "$(CI)" != true; }
	@$(MAKE) --no-print-directory -s $(TRITON) || { \
	    echo "make test: no Triton in $(TRITON_DIR): the tests of the GPU kernels are skipped" >&2; }
	@MSPROBE_PYTHON=$(abspath $(MSPROBE_VENV))/bin/python TRITON_PACKAGES=$(abspath $(TRITON_DIR)) $(PY) -m pytest $(PYTEST_ARGS)

docs: $(CORE) $(DOCS_TOOLS)
	@NO_MKDOCS_2_WARNING=1 $(PY) docs/make_site.py && echo "build/site/index.html"

dist: $(CORE) $(DIST_TOOLS)
	@rm -rf dist build/again
	@$(PY) -m hatchling build -d dist && $(PY) -m hatchling build -d build/again && cd dist && sha256sum * > ../build/sums
	@cd build/again && sha256sum --quiet -c ../sums
	@$(VENV)/bin/twine check --strict dist/* && $(VENV)/bin/check-wheel-contents dist/*.whl

crash: $(CORE) $(TEST_TOOLS)
	@CRASH_KILLS=200 CRASH_OLDER=1 $(PY) -m pytest tests/integration/test_crash.py --timeout=3600 -q

damage: $(CORE) $(TEST_TOOLS)
	@$(PY) -m tests.damage 200

MATRIX_ARGS ?=
matrix: $(CORE) $(TEST_TOOLS) $(MATRIX_TOOLS)
	@$(PY) -m tests.matrix $(MATRIX_ARGS)

verified: $(CORE) $(TEST_TOOLS)
	@VERIFY_JOBS=all $(PY) -m pytest tests/integration/test_verify.py --timeout=3600 -q

# FUZZ_ARGS=--atheris where `pip install atheris` has done it: mutations are then chosen by the code that they reach.
FUZZ_SECONDS ?= 600
FUZZ_ARGS    ?=
fuzz: $(CORE) $(TEST_TOOLS)
	@$(PY) -m tests.fuzz $(FUZZ_SECONDS) $(FUZZ_ARGS)

sanitize: $(CORE) $(TEST_TOOLS)
	@$(PY) -m tests.sanitize

long: $(CORE) $(TEST_TOOLS)
	@LONG=1 $(PY) -m pytest tests/integration/test_memory.py tests/integration/test_long_runs.py --timeout=3600 -q

check: check-python check-frontend

check-python: $(CORE) $(CHECK_TOOLS)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

fix: $(CORE) $(CHECK_TOOLS)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Installs each release from PyPI into a folder of its own: a gigabyte, kept in .releases.
real: $(CORE) $(TEST_TOOLS)
	@$(PY) -m bench.real $(BENCH_ARGS)

compiled: $(CORE) $(TEST_TOOLS) compiler
	@COMPILED_JOBS=all $(PY) -m pytest tests/integration/test_compiled_bisect.py --timeout=3600 -q
	@$(PY) -m bench.compiled_pairs
	@$(PY) -m bench.compiled $(BENCH_ARGS)

bench: $(CORE) $(MSPROBE)
	@$(PY) -m bench --msprobe $(MSPROBE_VENV)/bin/python $(BENCH_ARGS)

clean:
	rm -rf $(VENV) $(MSPROBE_VENV) $(TRITON_DIR) $(FRONTEND)/node_modules demo runs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench examples -name __pycache__ -prune -exec rm -rf {} +

# --- the front end: targets of the viewer's source ---------------------------------------------------------------
ifdef NODE_MODULES
frontend: $(NODE_MODULES)
	npm --prefix $(FRONTEND) run build

check-frontend: $(NODE_MODULES)
	@npm --prefix $(FRONTEND) run --silent check

test-frontend: $(NODE_MODULES)
	@npm --prefix $(FRONTEND) run --silent test
else
frontend check-frontend test-frontend:
endif

# `install --no-save` instead of `ci`: it keeps to the lock file too, and does not refuse one that leaves out the optional
# binaries of platforms that the registry did not offer when it was written.
$(FRONTEND)/node_modules/.stamp-%: $(FRONTEND)/package.json $(FRONTEND)/package-lock.json
	@command -v npm >/dev/null || { echo "make: npm is missing: install Node 20 or later" >&2; exit 1; }
	@echo "installing the front end's packages into $(FRONTEND)/node_modules" >&2
	@cd $(FRONTEND) && npm install --no-save --no-audit --no-fund --loglevel=error >/dev/null
	@touch $@

# What the tests need of the system, installed where we may: a browser, and a compiler for the fingerprint's C form.
browser:
	$(call want,chromium,chromium,the browser tests)

compiler:
	$(call want,cc,gcc libc6-dev,the tests of the C form)

define want
	@command -v $(1) >/dev/null || { \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        echo "installing $(2) for $(3)" >&2; \
	        { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $(2); } >/dev/null; \
	    fi; command -v $(1) >/dev/null; \
	} || { echo "make test: no $(1) (apt-get install $(2), as root): $(3) are skipped" >&2; test "$(CI)" != true; }
endef

# --- environments ------------------------------------------------------------------------------------------------
# Debian without python3-venv has no ensurepip; the system's pip can fill the environment instead.
define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	    echo "make: numscope needs Python 3.10 or later as $(PYTHON); say make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1) >/dev/null 2>&1 || { \
	    $(PYTHON) -m venv --clear --without-pip $(1) && $(PYTHON) -m pip --python $(1)/bin/python install -qq pip; }
endef

$(VENV)/.stamp-core-%:
	$(call make_venv,$(VENV))
	@echo "installing torch and numscope into $(VENV) (once)" >&2
	@$(PIP) -r requirements/torch.txt
	@$(PIP) -c requirements/torch.txt -r requirements/core.txt
	@$(PIP) -c requirements/torch.txt -c requirements/core.txt --no-deps -e .
	@rm -f $(VENV)/.stamp-core-* && touch $@

$(VENV)/.stamp-check-%: | $(CORE)
	@echo "installing the check tools into $(VENV) (once)" >&2
	@$(PIP) -c requirements/torch.txt -r requirements/core.txt -r requirements/check.txt
	@rm -f $(VENV)/.stamp-check-* && touch $@

$(VENV)/.stamp-test-%: | $(CORE)
	@echo "installing the test tools and the other frameworks into $(VENV) (once)" >&2
	@$(PIP) -c requirements/torch.txt -r requirements/core.txt -r requirements/test.txt
	@rm -f $(VENV)/.stamp-test-* && touch $@

$(VENV)/.stamp-docs-%: | $(CORE)
	@echo "installing the site's tools into $(VENV) (once)" >&2
	@$(PIP) -c requirements/torch.txt -r requirements/docs.txt
	@rm -f $(VENV)/.stamp-docs-* && touch $@

$(VENV)/.stamp-matrix-%: | $(CORE)
	@echo "installing uv into $(VENV) (once)" >&2
	@$(PIP) -c requirements/torch.txt -r requirements/matrix.txt
	@rm -f $(VENV)/.stamp-matrix-* && touch $@

$(VENV)/.stamp-dist-%: | $(CORE)
	@echo "installing what builds and checks packages into $(VENV) (once)" >&2
	@$(PIP) -c requirements/torch.txt -r requirements/dist.txt
	@rm -f $(VENV)/.stamp-dist-* && touch $@

$(MSPROBE_VENV)/.stamp-%:
	$(call make_venv,$(MSPROBE_VENV))
	@echo "installing torch and msprobe into $(MSPROBE_VENV) (once)" >&2
	@$(MSPROBE_VENV)/bin/python -m pip install -qq --disable-pip-version-check -r requirements/torch.txt
	@$(MSPROBE_VENV)/bin/python -m pip install -qq --disable-pip-version-check -c requirements/torch.txt -r requirements/msprobe.txt
	@rm -f $(MSPROBE_VENV)/.stamp-* && touch $@

# Beside the environment, not in it: torch behaves differently where Triton can be imported.
$(TRITON_DIR)/.stamp-%: | $(CORE)
	@echo "installing Triton into $(TRITON_DIR) (once)" >&2
	@rm -rf $(TRITON_DIR) && $(PIP) --no-deps --target $(TRITON_DIR) -c requirements/torch.txt -r requirements/triton.txt && touch $@
