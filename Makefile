# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
JOBS   ?= 2

.PHONY: demo test venv lint types check clean

demo: $(READY)  ## Broken programs: what PyTorch says, then what Gradmend says.
	@$(BIN)/gradmend demo

test: $(READY)  ## Every test that needs no third-party models.
	$(BIN)/python -m pytest -n $(JOBS) -m "not world and not ops"

venv: $(READY)

# torch comes first and alone, pinned, so that no other package can choose one.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
