# `make train` and `make test` do all the set-up on a fresh machine; doing them again sets nothing up twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKDIR ?= runs/sokoban
ARGS ?=

.PHONY: setup setup-test train test lint

setup: $(VENV)/.installed
setup-test: $(VENV)/.installed-test

$(VENV)/.installed: requirements.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed requirements-test.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements-test.txt
	@touch $@

train: setup
	@$(BIN)/python launch/train.py --config=configs/sokoban.py --workdir=$(WORKDIR) $(ARGS)

lint: setup-test
	@$(BIN)/ruff check -q --no-cache .
	@$(BIN)/ruff format -q --check --no-cache .
	@$(BIN)/mypy --no-error-summary

test: setup-test lint
	@$(BIN)/python -m pytest -q $(ARGS)
