# SPDX-License-Identifier: Apache-2.0
# The front door; meson and ninja do the work. `make help` lists what there is.
#   BUILD=build BUILDTYPE=release   where and how (debug, release …)
#   OPTIONS=-Dcuda=enabled          further options of meson_options.txt, when BUILD is made
#   ONLY=NAME                       of `make test`, `sanitize`, `variants`: only tests whose name contains it, or one of these
#   DATA=PATH N=4 ARGS=…            what `make demo` trains on, with how many workers, further flags
#   RANKS=2,4 SIZES=1M,10M          of `make compare-collectives`; without them everything, 15 minutes
#   PYTHON=                         an interpreter with torch, for gloo; else PyTorch is installed below BUILD
#   PYTHON_OLD=, ROW=mlp,gpt        of `make compare-training`: a second one, some rows; ROW=gpt/1gbit of `make compare-ddp`
#   PREFIX=/usr/local LIBDIR=lib    where `make install` puts it (below DESTDIR, if set)
#   STRIP=                          `make install` keeps debug information, as it does below DESTDIR

BUILD     ?= build
BUILDTYPE ?= release
PREFIX    ?= /usr/local
LIBDIR    ?= lib
STRIP     ?= strip
DATA      ?= examples/data/pride_and_prejudice.txt
ARGS      ?=
OPTIONS   ?=
TESTS_ONLY = $(ONLY:%=--only %)
C_FILES    = $(shell git ls-files -c -o --exclude-standard '*.c' '*.h')

.PHONY: all help build test test-quick test-long demo bench bench-dev bench-network compare-collectives compare-torch-backend compare-training compare-buckets compare-overlap compare-ddp compare-pipeline compare-tensor compare-zero compare-experts compare-generation compare-sim compare-plan compare-pmpi compare-busy docs gpu-check install uninstall wheel clean format tidy sanitize sanitize-fast variants fuzz mutate images

all: build

help:
	@echo "make build              library, command, programs, tests"
	@echo "make demo               trains a small GPT with 4 workers (N=, DATA=, ARGS=)"
	@echo "make install            library, command, programs, headers, pages (PREFIX=, DESTDIR=); no tests"
	@echo "make uninstall          removes what was installed last (PREFIX=, DESTDIR=)"
	@echo "make wheel              one file for pip: library, command, Python's interfaces; installs nothing"
	@echo "make test | test-quick  the tests (ONLY=NAME: some); each once, without those that take long"
	@echo "make test-long          with the random, slow and violent ones, and other builds"
	@echo "make tidy | format      the tests of form; clang-format"
	@echo "make bench | bench-network | bench-dev      measurements; those for developers"
	@echo "make compare-collectives | compare-torch-backend | compare-training      beside other systems"
	@echo "make compare-buckets                        automatic buckets beside a sweep of sizes"
	@echo "make compare-overlap                        communication that a computation hides, over MPI, at 1 Gbit/s (root)"
	@echo "make compare-ddp                            DDP beside PyTorch's over gloo: shared memory, TCP, 1 Gbit/s (root)"
	@echo "make compare-pipeline                       pipelines beside PyTorch's over gloo, on the same links (1 Gbit/s: root)"
	@echo "make compare-tensor                         tensor parallelism beside PyTorch's over gloo, on the same links (1 Gbit/s: root)"
	@echo "make compare-zero                           zero 1, 2, 3 beside PyTorch's optimizer and FSDP2 over gloo: time, memory"
	@echo "make compare-experts                        a layer of experts beside PyTorch's all_to_all_single over gloo (1 Gbit/s: root)"
	@echo "make compare-generation                     tokens/s of lockstep generate beside CTranslate2: float32, bf16, int8"
	@echo "make compare-sim                            predictions of lockstep sim beside measured steps (1 Gbit/s: root)"
	@echo "make compare-plan                           every runnable plan of a small GPT on 4 ranks beside that of lockstep plan auto"
	@echo "make compare-pmpi                           MPI_Allreduce of an unchanged program with and without the interposer"
	@echo "make compare-busy                           a step beside busy processes, and with threads that never spin"
	@echo "make sanitize | sanitize-fast | variants | fuzz      other builds"
	@echo "make mutate             plants changes in the sources, one at a time, and looks whether a test notices (ARGS=)"
	@echo "make images             both of README's commands in bare Debian systems; aarch64 (root)"
	@echo "make gpu-check          on a machine with an NVIDIA GPU: what the other tests see over fakes only (ARGS=)"
	@echo "make docs               README, pages, guide and headers as a site: BUILD/site/index.html"
	@echo "make clean"

$(BUILD)/build.ninja:
	meson setup $(BUILD) --buildtype=$(BUILDTYPE) --prefix=$(PREFIX) --libdir=$(LIBDIR) $(OPTIONS)

build: $(BUILD)/build.ninja
	ninja -C $(BUILD)

test: build
	tests/run --build $(BUILD) $(TESTS_ONLY)

# Each test once, over shared memory, without those that take long; CI runs `make test`.
test-quick: build
	tests/run --build $(BUILD) --quick

# Also what is random, slow or violent, and other builds: sanitizers, variants.
test-long: build
	TEST_SEED=random TEST_LONG=1 tests/run --build $(BUILD)
	$(MAKE) variants
	TEST_SEED=random $(MAKE) sanitize TEST_LONG=1
	$(MAKE) images

# README's two commands in a bare Debian 12 and 13, and an emulated aarch64; as root, from the network. Where an
# image cannot be made a line says SKIP and why.
images:
	@failed=0; \
	image() { env COMMANDS="$$2" PERSON="$$3" scripts/bare-image $$1; s=$$?; [ $$s = 0 ] || [ $$s = 77 ] || failed=1; }; \
	image bookworm "./demo ./check" root; \
	image trixie "./demo ./check" somebody; \
	image bookworm scripts/test-aarch64 root; \
	exit $$failed

# Trains a small GPT on the text in DATA with N workers.
demo: $(BUILD)/build.ninja
	ninja -C $(BUILD) programs
	$(BUILD)/lockstep run -n $(or $(N),4) $(BUILD)/examples/03_gpt_text --data "$(DATA)" $(ARGS)

bench: build
	$(BUILD)/lockstep bench all-reduce -n $(or $(N),2) --sizes 1M,10M,100M \
	    --buffers registered --json $(BUILD)/bench-all-reduce.json $(ARGS)

# Beside MPI libraries, oneCCL and gloo, which it installs where they are missing.
compare-collectives: build
	PYTHON=$(PYTHON) bench/peers/prepare $(BUILD)
	python3 bench/peers/compare.py --build $(BUILD) $(if $(PYTHON),--python $(PYTHON)) $(if $(RANKS),--ranks $(RANKS)) \
	    $(if $(SIZES),--sizes $(SIZES)) --command "$(strip make compare-collectives \
	    $(if $(RANKS),RANKS=$(RANKS)) $(if $(SIZES),SIZES=$(SIZES)))" $(ARGS)

# A DDP training step of PyTorch over gloo and over Lockstep; installs PyTorch where there is none.
compare-torch-backend: build
	bench/compare_torch_backend.py --build $(BUILD) $(if $(PYTHON),--python $(PYTHON)) \
	    $(if $(RANKS),--ranks $(RANKS)) $(ARGS)

# A training step in one process beside PyTorch, eager and compiled; installs PyTorch where there is none.
compare-training: build
	ninja -C $(BUILD) bench/contender_training
	bench/compare_training.py --build $(BUILD) $(if $(PYTHON),--python $(PYTHON)) \
	    $(if $(PYTHON_OLD),--old $(PYTHON_OLD)) $(if $(ROW),--rows $(ROW)) $(ARGS)

# Automatic buckets beside fixed sizes, over shared memory, TCP and, as root, 1 Gbit/s.
compare-buckets: build
	bench/compare_buckets.py --build $(BUILD) $(ARGS)

# All-reduces and DDP beside MPI_Iallreduce, between two namespaces at 1 Gbit/s.
compare-overlap: build
	bench/compare_overlap.py --build $(BUILD) --part loop $(ARGS)
	bench/compare_overlap.py --build $(BUILD) --part ddp $(ARGS)

# DDP beside PyTorch's DistributedDataParallel over gloo, in turns on the same links; installs PyTorch where there is none.
compare-ddp: build
	bench/compare_ddp.py --build $(BUILD) $(if $(PYTHON),--python $(PYTHON)) $(if $(ROW),--row $(ROW)) $(ARGS)

# Pipelines of two stages beside torch.distributed.pipelining, in turns; installs PyTorch where there is none.
compare-pipeline: build
	ninja -C $(BUILD) bench/contender_parallel
	bench/compare_pipeline.py --build $(BUILD) $(if $(PYTHON),--python $(PYTHON)) $(if $(ROW),--row $(ROW)) $(ARGS)

# Tensor parallelism of two ranks beside torch.distributed.tensor.parallel, in turns; installs PyTorch where there is none.
compare-tensor: build
	ninja -C $(BUILD) bench/contender_parallel
	bench/compare_tensor.py --build $(BUILD) $(if $(PYTHON),--python $(PYTHON)) $(if $(ROW),--row $(ROW)) $(ARGS)

# ZeRO on two ranks beside ZeroRedundancyOptimizer and FSDP2, in turns; installs PyTorch where there is none.
compare-zero: build
	ninja -C $(BUILD) bench/contender_parallel
	bench/compare_zero.py --build $(BUILD) $(if $(PYTHON),--python $(PYTHON)) $(if $(ROW),--row $(ROW)) $(ARGS)

# A layer of experts on two ranks beside one with all_to_all_single, in turns; installs PyTorch where there is none.
compare-experts: build
	ninja -C $(BUILD) bench/contender_parallel
	bench/compare_experts.py --build $(BUILD) $(if $(PYTHON),--python $(PYTHON)) $(if $(ROW),--row $(ROW)) $(ARGS)

# lockstep generate with weights of each type beside CTranslate2, which it installs.
compare-generation: build
	bench/compare_generation.py --build $(BUILD) $(ARGS)

# What lockstep sim predicts for steps on 1 to 8 ranks of this machine, beside what they take.
compare-sim: build
	ninja -C $(BUILD) bench/dev/kernels bench/dev/meet bench/dev/overlap
	bench/compare_sim.py --build $(BUILD) $(if $(ROW),--row $(ROW)) $(ARGS)

# Every runnable plan of a small GPT on 4 ranks beside the one that lockstep plan auto finds: 45 minutes; ARGS="--every 100".
compare-plan: build
	ninja -C $(BUILD) bench/dev/kernels bench/dev/meet bench/dev/plans
	bench/plan_regret.py --build $(BUILD) $(ARGS)

# A step beside busy processes, and the same step with threads that never spin.
compare-busy: build
	bench/compare_busy.py --build $(BUILD) $(ARGS)

compare-pmpi: build
	extra/pmpi/compare.py --build $(BUILD) $(ARGS)

# Developers' benches, build/bench/dev/: kernels, links, tuner, protections, counts of algorithms.
bench-dev: $(BUILD)/build.ninja
	ninja -C $(BUILD) bench-dev

# Two hosts (network namespaces) at 1 Gbit/s: needs root, ip, tc.
bench-network: build
	ninja -C $(BUILD) bench/dev/network
	bench/dev/network.sh $(BUILD) $(ARGS)

# Builds no tests. PREFIX may be another one than the build was set up with. Debug information, nine tenths of the size,
# is stripped, but not below DESTDIR: packagers' tools put it into packages of its own.
install: $(BUILD)/build.ninja
	@meson configure $(BUILD) -Dprefix=$(PREFIX) -Dlibdir=$(LIBDIR)
	@ninja -C $(BUILD) build.ninja # meson's list is that of the sources as they are now
	ninja -C $(BUILD) $$(scripts/installed $(BUILD))
	meson install -C $(BUILD) --no-rebuild
	@[ -n "$(DESTDIR)" ] || [ -z "$(STRIP)" ] || $(STRIP) --strip-debug $$(scripts/installed $(BUILD) --code)
	@[ -n "$(DESTDIR)" ] || ldconfig 2>/dev/null || true # so that the library is found at once

uninstall:
	@scripts/uninstall $(BUILD) $(PREFIX) $(DESTDIR)
	@[ -n "$(DESTDIR)" ] || ldconfig 2>/dev/null || true

# Prints its name. It needs glibc of the machine that builds it or newer, and nothing else; `auditwheel show` agrees.
wheel:
	@python3 python/make_wheel.py $(BUILD)

# On a machine with an NVIDIA GPU; results, with device, driver and commit, go to gpu-check.json.
gpu-check: build
	scripts/gpu-check --build $(BUILD) $(ARGS)

# By MkDocs, which it installs below BUILD where there is none. A link that leads nowhere is an error.
docs:
	docs/site/build $(BUILD)

clean:
	rm -rf build build-asan build-asan-fast build-tsan build-fuzz build-plain build-clang build-mutate

format:
	clang-format-14 -i $(C_FILES)

tidy: build
	tests/run --build $(BUILD) --only tidy

build-asan/build.ninja:
	meson setup build-asan --buildtype=debugoptimized -Db_sanitize=address,undefined

build-tsan/build.ninja:
	meson setup build-tsan --buildtype=debugoptimized -Db_sanitize=thread

build-plain/build.ninja:
	meson setup build-plain -Donednn=disabled -Dpcre2=disabled -Dzlib=disabled -Dutf8proc=disabled

build-clang/build.ninja:
	CC=clang-14 meson setup build-clang

# The same tests without oneDNN, PCRE2, utf8proc and zlib, and by another compiler.
variants: build-plain/build.ninja build-clang/build.ninja
	ninja -C build-plain
	ninja -C build-clang
	plain=0; tests/run --build build-plain $(TESTS_ONLY) || plain=1; \
	    tests/run --build build-clang $(TESTS_ONLY) && exit $$plain

# A rank that crashes dies of its signal and at once, as without a sanitizer.
sanitize: export UBSAN_OPTIONS = halt_on_error=1:print_stacktrace=1
sanitize: export ASAN_OPTIONS = handle_segv=0
sanitize: export TSAN_OPTIONS = handle_segv=0:atexit_sleep_ms=0
sanitize: build-asan/build.ninja build-tsan/build.ninja
	ninja -C build-asan
	ninja -C build-tsan
	asan=0; tests/run --build build-asan --programs-only $(TESTS_ONLY) || asan=1; \
	    tests/run --build build-tsan --programs-only $(TESTS_ONLY) && exit $$asan

# An hour or two on one core; goes on where it was left. ARGS="--only optim --more 10": see tests/mutate/run.
mutate:
	tests/mutate/run $(ARGS)

# What CI runs: -O1, no debug information, and of UBSan only what AddressSanitizer does not see as well and costs little (with
# pointers and alignment the build takes 1.9 times as long), so that the build takes minutes; and the programs that take seconds.
sanitize-fast: export UBSAN_OPTIONS = halt_on_error=1:print_stacktrace=1
sanitize-fast: export ASAN_OPTIONS = handle_segv=0
sanitize-fast: build-asan-fast/build.ninja
	ninja -C build-asan-fast lockstep examples/01_hello_all_reduce tests/unit/checkpoint/saver tests/unit/nn/foreign \
	    tests/plugins/ls_backend_loop.so tests/plugins/ls_backend_empty.so \
	    $$(tests/run --build build-asan-fast --programs-only --fast --list)
	tests/run --build build-asan-fast --programs-only --fast

build-asan-fast/build.ninja:
	meson setup build-asan-fast --buildtype=plain -Doptimization=1 -Ddebug=false -Db_sanitize=address,undefined \
	    -Dc_args=-fno-sanitize=pointer-overflow,null,object-size,alignment

# Parsers of files under libFuzzer, SECONDS each; what they find is left in build-fuzz.
FUZZERS = safetensors manifest handshake npy shard cifar idx tokenizer merges schedule plan profile cluster device
SECONDS ?= 60
build-fuzz/build.ninja:
	CC=clang-14 meson setup build-fuzz --buildtype=debugoptimized -Db_sanitize=address,undefined \
	    -Db_lundef=false -Dfuzz=true

fuzz: build-fuzz/build.ninja
	ninja -C build-fuzz $(FUZZERS:%=tests/fuzz/fuzz_%)
	for f in $(FUZZERS); do mkdir -p build-fuzz/found-$$f; build-fuzz/tests/fuzz/fuzz_$$f \
	    -max_total_time=$(SECONDS) -timeout=5 -rss_limit_mb=512 -artifact_prefix=build-fuzz/ \
	    build-fuzz/found-$$f tests/fuzz/corpus/$$f || exit 1; done
