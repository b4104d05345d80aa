# Two commands do all the set-up: `make demo` and `make test`. GNU make 3.81 is enough.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PORT ?= 3000
MIN_FREE_GB := 5
TORCH := torch==2.13.0
export DAGSTER_HOME := $(CURDIR)
export PYTHONPATH :=
export GX_ANALYTICS_ENABLED := false
export HF_HUB_DISABLE_TELEMETRY := 1
export HF_HUB_OFFLINE := 1

.PHONY: demo test lint format ui docs clean install

demo: $(STAMP)
	$(BIN)/runviewctl demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy pipeline resources loader/runview

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ui: $(STAMP)
	@echo "Dagster UI: http://127.0.0.1:$(PORT)"
	$(BIN)/dagster dev -w workspace.yaml -h 127.0.0.1 -p $(PORT)

docs: $(STAMP)
	$(BIN)/runviewctl docs

clean:
	rm -rf $(VENV) .lake .dagster_state .keys build site *.egg-info loader/*.egg-info loader/build .pytest_cache .mypy_cache .ruff_cache .hypothesis

install: $(STAMP)

# The stamp is written last, so an interrupted install goes on where it stopped (pip skips what is there).
$(STAMP): constraints.txt pyproject.toml loader/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed as '$(PYTHON)': install package python3.11 (Debian, Ubuntu) or python@3.11 (Homebrew), or set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing: install package python3.11-venv (Debian, Ubuntu)" >&2; exit 1; }
	@free=$$(df -Pk . | awk 'NR==2 {print int($$4 / 1048576)}'); test $$free -ge $(MIN_FREE_GB) || { \
	  echo "$(MIN_FREE_GB) GB of free disk are needed here, found $$free GB" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing torch for the CPU (a minute or two) ..." >&2
	@$(BIN)/python -c 'import importlib.metadata as m, sys; sys.exit(m.version("torch").split("+")[0] != "2.13.0")' 2>/dev/null \
	|| $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt "$(TORCH)+cpu" 2>/dev/null \
	|| { if test -n "$(TORCH_INDEX)"; then $(BIN)/pip install -q --disable-pip-version-check --index-url "$(TORCH_INDEX)" "$(TORCH)"; else \
	  test "$$(uname -s)" != Linux || echo "torch 2.13.0+cpu is not to be had here: plain torch brings CUDA (several GB); set TORCH_INDEX to a CPU index to avoid it" >&2; \
	  $(BIN)/pip install -q --disable-pip-version-check "$(TORCH)"; fi; }
	@echo "Installing the rest from constraints.txt (a minute or two) ..." >&2
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e './loader[torch,verify]' -e '.[dev]'
	@touch $(STAMP)
