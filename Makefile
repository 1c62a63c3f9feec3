# make demo   train FedAvg, MQAT and carousel on the embedded digits and compare them (two minutes on two cores)
# make test   run the tests
# Both create .venv from the pinned constraints, in layers: the demo installs what it needs, the tests add the rest. A second
# call starts at once. make site builds the documentation, make package the wheel, tried in an environment of its own.

PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo
READY := .venv/.ready
SITE := .venv/.site
PIP := $(BIN)/pip install -qq --disable-pip-version-check --constraint constraints.txt
SOURCES := $(shell find src -name '*.py' -o -name '*.toml')

.PHONY: demo test test-artifacts test-browser test-devices test-executorch test-fleet test-kernels test-kills test-models test-pages test-runtimes net net-renew models-page lint \
        package site lock audit clean

RUNS := runs/demo/runs
demo: runs/demo/trained
	@$(BIN)/anybit report $(RUNS)/fedavg-seed1 $(RUNS)/mqat-seed1 $(RUNS)/carousel-seed1 --out runs/demo/report
	@echo
	@echo "Next:  $(BIN)/anybit eval $(RUNS)/carousel-seed1 --width W5   # any width, on the whole test set"
	@echo "       $(BIN)/anybit cp demo/carousel mine.toml                      # a recipe of your own: anybit run mine.toml"
	@echo "       docs/tutorials/own-model.md                                     # your own model and data, to a 2-bit file"

# Interrupted runs go on; those made by older sources are made anew.
runs/demo/trained: $(DEMO) $(SOURCES)
	@if [ -f $@ ]; then rm -r runs/demo; fi
	@$(BIN)/anybit sweep demo/fedavg demo/mqat demo/carousel --path $(RUNS)
	@touch $@

test: $(READY)
	$(BIN)/pytest -n 2 --dist loadfile -m "not artifacts and not browser and not devices and not executorch and not fleet and not kernels and not kills and not models and not pages"

# What the host's compiler, ONNX Runtime and the readers of archives compute, against the evaluation.
test-artifacts: $(READY)
	$(BIN)/pytest -n 2 -m "artifacts and not browser and not executorch"

# Needs Chromium, clang with lld, and node (Debian: apt-get install chromium clang lld nodejs).
test-browser: $(READY)
	$(BIN)/pytest -m browser

# Needs a compiler for Cortex-M and QEMU (Debian: apt-get install --no-install-recommends gcc-arm-none-eabi
# libnewlib-arm-none-eabi qemu-system-arm).
test-devices: $(READY)
	$(BIN)/pytest -m devices -s

test-executorch: $(READY)
	@echo "Installing ExecuTorch into .venv"
	@$(PIP) --editable '.[executorch]'
	$(BIN)/pytest -m executorch

# Real SuperLink and SuperNode processes on this machine, and a fleet against the sequential engine under more settings.
test-fleet: $(READY)
	$(BIN)/pytest -m fleet

# Processes that are stopped and killed, torchrun's among them, and resumed to the same bytes.
test-kills: $(READY)
	$(BIN)/pytest -n 2 -m kills

# Needs a C++ compiler (Debian: apt-get install g++). On GPU machines PyTorch brings its own Triton; here any recent one
# interprets the kernels.
test-kernels: $(READY)
	@echo "Installing Triton into .venv"
	@$(BIN)/pip install -qq --disable-pip-version-check triton==3.6.0
	$(BIN)/pytest -m kernels

# Models of timm, torchvision and transformers, and of every other kind: docs/models.md is what this proves.
test-models: $(READY)
	@echo "Installing timm, torchvision and transformers into .venv"
	@$(PIP) --editable '.[models]'
	$(BIN)/pytest -n 2 --dist loadgroup -m models tests/models

# The tutorial and the how-to pages, top to bottom, and the commands that a report prints.
test-pages: $(READY)
	$(BIN)/pytest -m pages

# Released runtimes, each in an environment of its own; writes results/devices/runtimes.csv and the table in docs/export.md.
test-runtimes: $(READY)
	$(BIN)/python -m tools.runtimes

# Tiny runs of everything at another commit and here, every file compared: make net BASE=HEAD~1
net: $(READY)
	$(BIN)/python tools/net/compare.py $(BASE)

# After an intended change of draws, splits, initial weights, start steps or public names; say why in the changelog.
net-renew: $(READY)
	$(BIN)/python -m tests.net.fingerprints
	$(BIN)/python -m tests.net.public_names

# After a change of tests/models/cases.py.
models-page: $(READY)
	$(BIN)/python tools/models_page.py

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/mypy

lock: $(READY)
	$(BIN)/python tools/lock.py

# In an environment of its own: pip-audit brings many packages that anybit does not need.
audit:
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	.venv/audit/bin/pip-audit --requirement requirements.lock --no-deps --disable-pip

# Wheel and sdist, the wheel installed where there is no checkout, its command and a short training tried.
package:
	@$(PYTHON) tools/package.py

site: $(SITE)
	@$(BIN)/python tools/manual/pages.py build/pages
	@$(BIN)/zensical build --clean --strict
	@echo "The documentation is in site/: $(BIN)/python -m http.server --directory site"

$(DEMO): pyproject.toml constraints.txt
	@echo "Installing what the demo needs into .venv: torch, scikit-learn, matplotlib (250 MB to download with torch for CPUs)"
	@$(PYTHON) -m venv .venv
	@$(PIP) --editable '.[demo]'
	@touch $@

# The extra privacy without its bound on attrs, which others want newer (docs/dependencies.md).
$(READY): $(DEMO)
	@echo "Adding the rest to .venv: ONNX Runtime, Flower, Hugging Face datasets, test tools (250 MB to download)"
	@$(PIP) --editable '.[all,dev]'
	@$(PIP) --no-deps dp-accounting absl-py dm-tree wrapt
	@touch $@

$(SITE): $(DEMO)
	@echo "Adding Zensical to .venv (20 MB to download)"
	@$(PIP) zensical
	@touch $@

clean:
	rm -rf .venv runs/demo site build dist
