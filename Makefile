# Set-up is part of every target: on a bare machine `make demo` and `make test` do all that is needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test check bench accuracy screenshots torture clean

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,drills,dev]'
	@touch $(READY)

# With a terminal the app opens on a built-in regression; without one it runs headless. There sparsetui exits 1, since a
# fault was found: that is what the demo is for, so only other codes fail the target.
demo: $(READY)
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/sparsetui drill; \
	else $(BIN)/sparsetui drill --headless --budget 45; code=$$?; [ $$code -eq 1 ] || exit $$code; fi

test: $(READY)
	@$(BIN)/python -m pytest -q -n 2 --no-loadscope-reorder tests

check: $(READY)
	@$(BIN)/ruff check sparsetui tests bench
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(READY)
	@$(BIN)/python -m bench

accuracy: $(READY)
	@$(BIN)/python -m bench.accuracy

# The README's pictures, by the real app on the worked examples in sessions/.
screenshots: $(READY)
	@$(BIN)/python -m bench.screenshots

# The long form of every driver, with counts (within 15 minutes on two quiet cores); the tests run a short one.
torture: $(READY)
	@$(BIN)/python -m tests.torture

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
