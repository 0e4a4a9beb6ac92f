# `make course` reads the book, `make test` checks everything, `make help` lists the rest.
#
#   PYTHON  interpreter that makes the environment: 3.11, 3.12 or 3.13 (python3, or the environment's own)
#   VENV    where the environment goes (.venv)
#   TORCH   auto, cpu, default or none; see tools/setup_env.py

VENV ?= .venv
# The environment's own once there is one, so that a choice made before holds.
PYTHON ?= $(or $(wildcard $(VENV)/bin/python),python3)
TORCH ?=

RUN = $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help env course book lab test lint types unit notebooks numpy-only format test-web clean

help:
	@echo "make course     make the environment, build the book and serve it on this machine"
	@echo "make book       build the book only, into _build/html"
	@echo "make lab        open JupyterLab, for the exercise notebooks"
	@echo "make test       run everything: lint, types, unit tests, notebooks, book"
	@echo "make lint | types | unit | notebooks | numpy-only    one part of it"
	@echo "make test-web   open every page of the book in headless Chromium (needs node and chromium)"
	@echo "make format     format the code"
	@echo "make clean      remove what was built; the environment stays"
	@echo "Variables: PYTHON=python3.12  VENV=.venv  TORCH=auto|cpu|default|none"

env:
	@$(PYTHON) tools/setup_env.py --venv "$(VENV)" --torch "$(TORCH)"

course: env
	@$(RUN) tools/book.py course

book: env
	@$(RUN) tools/book.py build

lab: env
	@$(VENV)/bin/jupyter lab

test: env
	@$(RUN) tools/check.py

lint types unit notebooks numpy-only: env
	@$(RUN) tools/check.py $@

format: env
	@$(RUN) -m ruff check --fix-only --quiet . && $(RUN) -m ruff format .

test-web: book tools/web/node_modules
	@node tools/web/smoke.mjs

tools/web/node_modules: tools/web/package.json tools/web/package-lock.json
	@cd tools/web && npm ci --no-audit --no-fund --silent
	@touch $@

clean:
	rm -rf _build .pytest_cache .ruff_cache .mypy_cache .hypothesis
