# The two commands of a newcomer are `make demo` and `make test`; CMake does the work (presets in
# CMakePresets.json). On a machine without what the build needs they install it through apt when
# they may, and otherwise print the one command that would.

PACKAGES = build-essential cmake ninja-build pkg-config \
           libjansson-dev libpcre2-dev libutf8proc-dev libmicrohttpd-dev libvectorscan-dev \
           libcmocka-dev libcurl4-openssl-dev libsqlite3-dev nettle-dev
# What a shell can see of each: programs, then pkg-config modules.
PROGRAMS = cc cmake ninja pkg-config
MODULES  = jansson libpcre2-8 libutf8proc libmicrohttpd libhs cmocka libcurl sqlite3 nettle

BUILD   ?= build
MODEL   ?= models/tiny
BACKEND ?= auto
PROMPT  ?= What is a river?
PREFIX  ?= /usr/local
DESTDIR ?=
# Tests run side by side, one per processor.
JOBS    ?= $(shell nproc)

.PHONY: all demo test soak detect device-bundle install format check-format clean deps build sysroot-aarch64

all: build

deps:
	@missing=""; \
	for p in $(PROGRAMS); do command -v $$p >/dev/null 2>&1 || missing=yes; done; \
	for m in $(MODULES); do pkg-config --exists $$m 2>/dev/null || missing=yes; done; \
	if [ -n "$$missing" ]; then tools/install-packages.sh $(PACKAGES); fi

build: deps
	@cmake -G Ninja -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) >$(BUILD).log 2>&1 \
	    || { cat $(BUILD).log; exit 1; }
	@sed -n 's/^-- \(CUDA backend\)/\1/p' $(BUILD).log
	@rm -f $(BUILD).log
	@cmake --build $(BUILD)

# Asks the small trained model a question; MODEL=DIR asks another checkpoint, PROMPT=TEXT something
# else. Both reach the shell by the environment, so that they may hold quotes and spaces.
export MODEL PROMPT
demo: build
	@echo
	@printf '$$ calla run -m %s --no-think --greedy --stats -p "%s"\n' "$$MODEL" "$$PROMPT"
	@$(BUILD)/calla run -m "$$MODEL" --backend $(BACKEND) --no-think --greedy --stats -p "$$PROMPT"

test: build
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

# Long runs: tests/soak/*.sh, each given the program, the build folder and the source folder.
soak: build
	@for s in tests/soak/*.sh; do echo "== $$s"; bash $$s $(BUILD)/calla $(BUILD) . || exit 1; done

# For tests/cuda/device_check.sh on a machine with a GPU and nothing else.
device-bundle: build
	@tools/device-bundle.sh $(BUILD) $(BUILD)/device-check.tar.xz

# What cross-compiling for 64-bit Arm links with (preset aarch64): the same libraries, unpacked.
sysroot-aarch64:
	@tools/make-sysroot.sh arm64 build-sysroot-aarch64 $(filter %-dev,$(PACKAGES))

# What the check for sensitive content finds on the labelled corpus, and how fast it is.
detect: build
	@$(BUILD)/tests/test_corpus
	@$(BUILD)/tests/bench_detect

install: build
	DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)"

SOURCES = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh')
format:
	clang-format -i $(SOURCES)
check-format:
	clang-format --dry-run -Werror $(SOURCES)

clean:
	rm -rf $(BUILD)
