# make demo     installs, serves the canary with a real engine, asks it one question, takes it down
# make test     installs and runs every test that needs no Docker
# make e2e      real engines and real Docker end to end (half an hour)
# make e2e-ci   the same without what takes minutes: what CI runs
# make lint     formatting, lint, types
# make install  creates .venv with dsctl in .venv/bin

PYTHON  ?= python3
VENV    := .venv
DSCTL   := $(VENV)/bin/dsctl
PYTEST  ?= -q
# Test tools for the engine's own Python, beside its environment and never in it.
TOOLS   := .venv-engine-tools
# Tests that need torch and vLLM run in the engine's environment.
ENGINE_PYTEST = PYTHONPATH=$(CURDIR)/runtime:$(CURDIR)/$(TOOLS):$(CURDIR) \
  "$$($(DSCTL) env build)/bin/python" -m pytest $(PYTEST)

.PHONY: install demo test test-launcher test-runtime e2e e2e-ci lint format clean

install: $(VENV)/.installed

$(VENV)/.installed: launcher/pyproject.toml requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -r requirements-dev.txt -e './launcher[charts]'
	$(VENV)/bin/python -m compileall -q launcher/dsctl
	touch $@

demo: install
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" tools/demo

test: test-launcher test-runtime

test-launcher: install
	$(VENV)/bin/python -m pytest $(PYTEST) tests/launcher

test-runtime: install $(TOOLS)/.installed
	$(ENGINE_PYTEST) tests/runtime tests/canary

$(TOOLS)/.installed: requirements-dev.txt | install
	rm -rf $(TOOLS)
	"$$($(DSCTL) env build)/bin/python" -m pip install -q --disable-pip-version-check \
	  --target $(TOOLS) $$(grep -E '^(pytest|hypothesis|mypy)==' requirements-dev.txt)
	touch $@

e2e: install $(TOOLS)/.installed
	$(VENV)/bin/python -m pytest $(PYTEST) tests/e2e --ignore tests/e2e/test_tensor_parallel.py
	$(ENGINE_PYTEST) tests/e2e/test_tensor_parallel.py

e2e-ci: install $(TOOLS)/.installed
	$(VENV)/bin/python -m pytest $(PYTEST) -m "not long" tests/e2e --ignore tests/e2e/test_tensor_parallel.py
	$(ENGINE_PYTEST) -m "not long" tests/e2e/test_tensor_parallel.py

lint: install $(TOOLS)/.installed
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy launcher/dsctl tools
	MYPYPATH=runtime PYTHONPATH=$(CURDIR)/$(TOOLS) "$$($(DSCTL) env build)/bin/python" -m mypy \
	  --config-file runtime/pyproject.toml -p dsruntime
	MYPYPATH=$(CURDIR):$(CURDIR)/runtime PYTHONPATH=$(CURDIR)/$(TOOLS) \
	  "$$($(DSCTL) env build)/bin/python" -m mypy --config-file mypy.ini -p canary

format: install
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) $(TOOLS) .pytest_cache .mypy_cache .ruff_cache .hypothesis
