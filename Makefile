# Quatrain. Each target installs what is missing, builds, and runs; a second run touches no network.
#   QUATRAIN_TORCH=<torch folder>   use this torch instead of the one in .venv
#   PIP_ARGS=...                    passed on to pip
#   SANITIZE=address,undefined|thread   an instrumented build in a folder of its own
#   JOBS=n                          compile jobs (default: the cores of this machine)

SANITIZE ?=
empty :=
comma := ,
BUILD := build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
JOBS ?= $(shell nproc)
CTEST := ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

.PHONY: help build demo test sanitize soak bench format tidy install clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 20

build:  ## the command, at build/quatrain
	@tools/bootstrap build
	@tools/configure $(BUILD) "$(SANITIZE)"
	@cmake --build $(BUILD) -j $(JOBS) --target quatrain examples

demo:  ## train a small model on the King James Bible and let it write
	@tools/bootstrap build demo
	@tools/configure $(BUILD) "$(SANITIZE)"
	@cmake --build $(BUILD) -j $(JOBS) --target quatrain
	@tools/demo $(BUILD)

test:  ## everything that must hold: what CI runs
	@tools/bootstrap build test
	@tools/configure $(BUILD) "$(SANITIZE)"
	@cmake --build $(BUILD) -j $(JOBS)
	@$(CTEST) -LE soak

sanitize:  ## address, undefined-behaviour and thread sanitizers over what owns memory and threads
	@tools/bootstrap build test
	@tools/configure build-sanitize "address,undefined"
	@tools/sanitize build-sanitize $(JOBS)
	@tools/configure build-races "thread"
	@tools/sanitize_races build-races $(JOBS)

soak: test  ## the whole of every grid and count
	@ctest --test-dir $(BUILD) --output-on-failure -L soak
	@tools/bootstrap fuzz
	@tools/fuzz 60

bench:  ## time against PyTorch: one table and one JSON file each, in build/bench
	@tools/bootstrap build test bench
	@tools/configure $(BUILD) "$(SANITIZE)"
	@cmake --build $(BUILD) -j $(JOBS)
	@bench/run $(BUILD)

format:  ## clang-format over the tree
	@tools/bootstrap format
	@git ls-files '*.h' '*.cc' | xargs clang-format-14 -i

install: build  ## the library and the command, under PREFIX (default /usr/local)
	@cmake --install $(BUILD) --prefix $(or $(PREFIX),/usr/local)

clean:  ## removes build folders; keeps .venv
	@rm -rf build build-*
