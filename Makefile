# `make demo`, `make demo-agents` and `make test` do all the set-up themselves, into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo demo-agents test lint clean
.DELETE_ON_ERROR:

demo: .venv/installed
	$(BIN)/freerun demo

demo-agents: .venv/installed-agents
	$(BIN)/python -m examples.calculator.demo

test: .venv/installed-dev lint
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt "setuptools>=77"
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable .
	touch $@

.venv/installed-agents: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[openai-agents]"
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist *.egg-info
