# HillInfer - build, test, demo. `make help` lists the targets.
#
# One non-recursive Makefile: every folder in LIBRARIES becomes an archive of its *.c files, every folder in
# PROGRAMS a program of its *.c files, every tests/<folder>/test_*.c a test program. Dropping a
# file into a folder is enough to build it. A configuration (release, debug, asan, tsan, ubsan, asan+ubsan,
# faults) has an object folder of its own: build/<configuration>; release binaries land in build/bin.

CC      ?= gcc
CONFIG  ?= $(if $(FAULTS),faults,release)
VERSION := 0.1.0
PREFIX  ?= /usr/local

LIBRARIES := base shm kv placement proto recording pool model session prefix chat
# program = folder
hill-gpu-worker  := gpu_worker
hill-cpu-scorer  := cpu_scorer
hill-csd-agent   := csd_agent
hill-coordinator := coordinator
hillctl          := hillctl
hill-gateway     := gateway
hill-mkmodel     := tools/mkmodel
hill-kvtrace     := tools/kvtrace
hill-fsck-pool   := tools/fsck
hill-eval        := tools/eval
hill-replay      := tools/replay
PROGRAMS := hill-gpu-worker hill-cpu-scorer hill-csd-agent hill-coordinator hillctl hill-gateway hill-mkmodel hill-kvtrace hill-fsck-pool hill-eval hill-replay

PACKAGES := libzmq liburing OpenCL libprotobuf-c inih jansson libxxhash libpcre2-8 libedit

O := build/$(CONFIG)
BIN := $(if $(filter release,$(CONFIG)),build/bin,$(O)/bin)
# What a FAULTS build has beside the objects of a release build (in $(PLAIN)) is what includes base/fault.h.
PLAIN := $(if $(filter faults,$(CONFIG)),build/release,$(O))
FAULT_SOURCES := $(if $(filter faults,$(CONFIG)),$(shell grep -l 'include "base/fault' *.c */*.c */*/*.c 2>/dev/null))
objects = $(foreach c,$(1),$(if $(filter $(c),$(FAULT_SOURCES)),$(O),$(PLAIN))/$(c:.c=.o))

comma := ,
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
            -Wwrite-strings -Wno-missing-field-initializers
FLAGS_release := -O2 -g -fno-omit-frame-pointer
FLAGS_debug   := -O0 -g3 -fno-omit-frame-pointer
FLAGS_asan    := -O1 -g -fno-omit-frame-pointer -fsanitize=address
FLAGS_ubsan   := -O1 -g -fno-omit-frame-pointer -fsanitize=undefined -fno-sanitize-recover=all
# what the tests run: both at once, and of the debug information what a report's lines need
FLAGS_asan+ubsan := -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
# fault points of base/fault.h (make FAULTS=1); not -O2, to build soon
FLAGS_faults  := -O1 -g1 -fno-omit-frame-pointer -DHILL_FAULTS
FLAGS_tsan    := -O1 -g1 -fno-omit-frame-pointer -fsanitize=thread
# by tests/fuzz/run with clang, whose own warnings are not a reason not to fuzz
FLAGS_fuzz    := -O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined \
                 -fno-sanitize-recover=undefined -Wno-error -Werror=implicit-function-declaration
# the sum of a floating-point reduction must not depend on the compiler's mood: no contraction
override CFLAGS += -std=c11 -D_GNU_SOURCE $(WARNINGS) $(FLAGS_$(CONFIG)) -ffp-contract=off -pthread \
          -DHILL_VERSION='"$(VERSION)"' -DCL_TARGET_OPENCL_VERSION=120
PACKAGE_CFLAGS := $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
override CPPFLAGS += -I. -I$(PLAIN) $(PACKAGE_CFLAGS)
override LDFLAGS += -pthread $(filter -fsanitize%,$(FLAGS_$(CONFIG)))
# what base/fault_calls.c stands in front of
FAULT_CALLS := malloc calloc realloc aligned_alloc strdup mmap read pread write pwrite ftruncate fallocate \
               posix_fallocate fsync fdatasync rename clCreateBuffer clCreateKernel clBuildProgram \
               clEnqueueNDRangeKernel clEnqueueReadBuffer clEnqueueWriteBuffer clEnqueueMapBuffer clFinish
ifeq ($(CONFIG),faults)
override LDFLAGS += $(patsubst %,-Wl$(comma)--wrap=%,$(FAULT_CALLS))
endif
LDLIBS := $(shell pkg-config --libs $(PACKAGES) 2>/dev/null) -lnuma -lm -lrt
TEST_LDLIBS := $(shell pkg-config --libs cmocka 2>/dev/null)

SHELL_SOURCES = $(sort $(shell git grep -lE '^\#!/.*sh$$'; git ls-files '*.sh'))

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

# ---- sources -------------------------------------------------------------------------------
PROTO_C := $(PLAIN)/proto/hill.pb-c.c
PROTO_H := $(PLAIN)/proto/hill.pb-c.h

define library_rules
$(1)_objects := $$(call objects,$$(wildcard $(1)/*.c))
$(O)/lib$(1).a: $$($(1)_objects)
	@rm -f $$@
	@ar rcs $$@ $$^
endef
$(foreach l,$(LIBRARIES),$(eval $(call library_rules,$(l))))
$(O)/libproto.a: $(PLAIN)/proto/hill.pb-c.o

# A library may use those to its left in base, shm, kv, placement, proto, recording, pool, model, session, prefix, chat; archives are grouped once.
ARCHIVES := $(foreach l,$(LIBRARIES),$(O)/lib$(l).a)
LINK = @mkdir -p $(@D); echo "  LINK  $@"; \
       $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LDLIBS)

# $(1) program, $(2) folder: all of the folder but main.c is also an archive, for the folder's tests
define program_rules
$(2)_objects := $$(call objects,$$(wildcard $(2)/*.c))
$(BIN)/$(1): $$($(2)_objects) $(O)/commit.o $(ARCHIVES)
	$$(LINK)
$(notdir $(2))_parts := $$(filter-out %/main.o,$$($(2)_objects))
endef
$(foreach p,$(PROGRAMS),$(eval $(call program_rules,$(p),$($(p)))))

# which commit --version names; of a tree without git none. Only programs are linked again when it changes: base/options.c
# takes it as a weak symbol.
$(O)/commit.c: always
	@mkdir -p $(@D); text='extern const char hill_commit[]; const char hill_commit[] = "'$$(git describe --always --abbrev=12 \
	--exclude '*' 2>/dev/null)'";'; [ "$$(cat $@ 2>/dev/null)" = "$$text" ] || echo "$$text" >$@
$(O)/commit.o: $(O)/commit.c $(O)/flags
	@$(CC) $(CFLAGS) -c -o $@ $<
.PHONY: always

# HTTP is the gateway's alone: its library and what that brings load in no other process
$(BIN)/hill-gateway: override LDLIBS += $(shell pkg-config --libs libmicrohttpd 2>/dev/null)

# a replay runs the workers' own code
$(BIN)/hill-replay: $(gpu_worker_parts) $(cpu_scorer_parts) $(csd_agent_parts)
replay_parts += $(gpu_worker_parts) $(cpu_scorer_parts) $(csd_agent_parts)

# real models are tried in the engine
models_parts := $(gpu_worker_parts)

# what the figures share: all of tools/bench/ but bench_<figure>.c; also linked to the tests of that folder
bench_objects := $(patsubst %.c,$(O)/%.o,$(wildcard tools/bench/*.c))
bench_parts := $(patsubst %.c,$(O)/%.o,$(filter-out tools/bench/bench_%,$(wildcard tools/bench/*.c)))

TEST_SOURCES := $(wildcard tests/*/test_*.c)
TEST_PROGRAMS := $(patsubst tests/%.c,$(O)/tests/%,$(TEST_SOURCES))
# tests/<folder>/*.c that are no tests are rigs: one archive, of which a test takes what it names; not fuzzers, nor
# what is linked with another engine (oracle)
RIGS := $(O)/tests/librigs.a
$(RIGS): $(call objects,$(filter-out $(TEST_SOURCES) $(wildcard tests/fuzz/*.c tests/chaos/*.c tests/net/*.c tests/oracle/*.c),\
    $(wildcard tests/*/*.c)))
	@mkdir -p $(@D); rm -f $@
	@ar rcs $@ $^; twice=$$(nm --defined-only $@ 2>/dev/null | awk 'NF == 3 && $$2 ~ /[TDBR]/ {print $$3}' | \
	sort | uniq -d); [ -z "$$twice" ] || { echo "two rigs define $$twice"; exit 1; }
# hundreds are linked: by gold where that is installed, which takes half the time; programs as ever
TEST_LINKER := $(if $(shell command -v ld.gold),-fuse-ld=gold)
$(TEST_PROGRAMS): override LDFLAGS += $(TEST_LINKER)
# a test of tests/<folder>/ links the parts of <folder> when that is a program's folder
$(filter $(O)/tests/gateway/%,$(TEST_PROGRAMS)): override LDLIBS += $(shell pkg-config --libs libmicrohttpd 2>/dev/null)
.SECONDEXPANSION:
$(TEST_PROGRAMS): $(O)/tests/%: $(O)/tests/%.o $$($$(firstword $$(subst /, ,$$*))_parts) $(RIGS) $(ARCHIVES)
	$(LINK) $(TEST_LDLIBS)

# for Vitis HLS, whose pragmas gcc does not know; no process has it, its C test bench does
HLS_OBJECT := $(O)/csd_agent/fpga/hls_score.o
$(HLS_OBJECT): override CFLAGS += -Wno-unknown-pragmas
$(O)/tests/csd_agent/test_hls_score: $(HLS_OBJECT)
# a stand-in for Xilinx' OpenCL runtime, which the loader takes in as one; the kernel in C scores in it
MOCK_XRT := $(O)/tests/csd_agent/xrt/mock_xrt.so
$(MOCK_XRT): tests/csd_agent/xrt/mock_xrt.c csd_agent/fpga/hls_score.c $(wildcard tests/csd_agent/xrt/*.h csd_agent/fpga/*.h) csd_agent/xrt_extensions.h $(O)/flags
	@mkdir -p $(@D); echo "  LINK  $@"
	@$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-unknown-pragmas -fvisibility=hidden -fPIC -shared -o $@ $(filter %.c,$^)
$(O)/tests/csd_agent/test_xrt: | $(MOCK_XRT)
# what starts processes starts those of its configuration ($HILL_BIN)
$(O)/tests/gpu_worker/test_worker $(O)/tests/gpu_worker/test_mend: | $(BIN)/hill-gpu-worker
$(O)/tests/coordinator/test_supervised: | $(addprefix $(BIN)/,hill-coordinator hill-gpu-worker hill-cpu-scorer hill-csd-agent hillctl hill-mkmodel)

# what `make chaos` shoots with
$(O)/tests/chaos/chaos: $(patsubst %.c,$(O)/%.o,$(wildcard tests/chaos/*.c)) $(ARCHIVES)
	$(LINK)

# a link with delay and loss, for tests/long/remote_drive.sh
$(O)/tests/net/slow_link: $(O)/tests/net/slow_link.o $(O)/libbase.a
	$(LINK)

# what tests/long/http_sockets.sh asks a gateway with
$(O)/tests/fuzz/socket_clients: $(O)/tests/fuzz/socket_clients.o $(ARCHIVES)
	$(LINK)

# a figure is tools/bench/bench_<figure>.c with what they share; only `make bench` builds them
$(O)/tools/bench/bench_score: $(O)/cpu_scorer/scoring.o $(O)/cpu_scorer/topology.o
$(O)/tools/bench/bench_flash: $(csd_agent_parts)
$(O)/tools/bench/bench_batch: $(gpu_worker_parts)
$(patsubst tools/bench/%.c,$(O)/tools/bench/%,$(wildcard tools/bench/bench_*.c)): $(O)/tools/bench/%: $(O)/tools/bench/%.o $(bench_parts) $(ARCHIVES)
	$(LINK)

# tests/fuzz/fuzz_<name>.c is linked with libFuzzer's main: only CONFIG=fuzz with clang can (tests/fuzz/run)
FUZZERS := $(patsubst tests/%.c,$(O)/tests/%,$(wildcard tests/fuzz/fuzz_*.c))
$(FUZZERS): override LDFLAGS += -fsanitize=fuzzer
$(O)/tests/fuzz/make_seeds: $(O)/tests/fuzz/file_seeds.o
$(O)/tests/fuzz/make_seeds $(O)/tests/fuzz/fuzz_token_log: $(O)/coordinator/token_log.o
$(O)/tests/fuzz/make_seeds $(O)/tests/fuzz/fuzz_tokenizer: $(O)/tests/model/tiny_model.o $(O)/tests/model/gguf_writer.o
$(O)/tests/fuzz/make_seeds $(O)/tests/fuzz/fuzz_tokenizer: override LDLIBS += $(TEST_LDLIBS)
$(O)/tests/fuzz/fuzz_commands $(O)/tests/fuzz/fuzz_drive: $(csd_agent_parts)
$(O)/tests/fuzz/fuzz_adoption: $(cpu_scorer_parts) $(O)/tests/cpu_scorer/hkm_audit.o
$(O)/tests/fuzz/make_seeds $(O)/tests/fuzz/fuzz_small_files: $(O)/coordinator/profile.o $(O)/coordinator/tiers_record.o \
        $(O)/coordinator/drives_record.o
$(O)/tests/fuzz/fuzz_http: $(gateway_parts)
$(O)/tests/fuzz/fuzz_http: override LDLIBS += $(shell pkg-config --libs libmicrohttpd 2>/dev/null)
$(FUZZERS) $(O)/tests/fuzz/make_seeds: $(O)/tests/fuzz/%: $(O)/tests/fuzz/%.o $(ARCHIVES)
	$(LINK)

# What objects are built with, VERSION too: when it changes, they are built again. Sorted, which drops what is there
# twice: CFLAGS of the environment, in a make that another one calls. Expanded here, without what a target adds.
$(O)/flags: FLAGS_TEXT := $(sort $(CC) $(CFLAGS) $(CPPFLAGS))
define compile
	@mkdir -p $(@D); echo "  CC    $<"
	@$(CC) $(CFLAGS) $(CPPFLAGS) -MMD -MP -c -o $@ $<
endef
$(O)/%.o: %.c $(O)/flags | $(PROTO_H)
	$(compile)
ifneq ($(PLAIN),$(O))
$(PLAIN)/%.o: override CFLAGS := $(subst $(FLAGS_$(CONFIG)),$(FLAGS_release),$(CFLAGS))
$(PLAIN)/flags: FLAGS_TEXT := $(sort $(CC) $(subst $(FLAGS_$(CONFIG)),$(FLAGS_release),$(CFLAGS)) $(CPPFLAGS))
$(PLAIN)/%.o: %.c $(PLAIN)/flags | $(PROTO_H)
	$(compile)
endif
$(sort $(O)/flags $(PLAIN)/flags): always
	@mkdir -p $(@D); text='$(subst ','\'',$(FLAGS_TEXT))'; \
	[ "$$(cat $@ 2>/dev/null)" = "$$text" ] || printf '%s\n' "$$text" >$@

# gcc's lists of dependencies do not have what an object embeds (base/embed.h): kernels (any of its folder), a page, a text
$(call objects,gateway/job_ask.c): gateway/page.html
$(call objects,gpu_worker/probe_heads.c): gpu_worker/probe_text.txt
$(O)/tests/model/test_blocks.o: tests/model/quant_blocks.bin
$(foreach f,base gpu_worker csd_agent,$(eval $$(call objects,$$(wildcard $(f)/*.c)): $$(wildcard $(f)/*.cl)))

$(PROTO_C) $(PROTO_H) &: proto/hill.proto
	@mkdir -p $(PLAIN)/proto; echo "  PROTO $<"
	@protoc-c --c_out=$(PLAIN)/proto -Iproto hill.proto
$(PLAIN)/proto/hill.pb-c.o: $(PROTO_C) $(PLAIN)/flags
	@$(CC) $(filter-out -W%,$(CFLAGS)) $(CPPFLAGS) -MMD -MP -c -o $@ $<

-include $(shell find $(sort $(O) $(PLAIN)) -name '*.d' 2>/dev/null)

# ---- targets -------------------------------------------------------------------------------
.PHONY: all programs tests debug asan tsan ubsan deps demo check check-quick check-sanitized check-models check-opencl \
        bench fuzz chaos soak attach-cycles remote-drive screenshots lint format \
        manual install uninstall clean help
programs: $(addprefix $(BIN)/,$(PROGRAMS))
tests: $(TEST_PROGRAMS)

all: deps ## install what is missing and build every program into build/bin
	@$(MAKE) --no-print-directory programs

debug asan tsan ubsan: deps ## build that configuration into build/<configuration>/bin
	@$(MAKE) --no-print-directory CONFIG=$@ programs

deps: ## install the Debian packages that are missing
	@scripts/install-deps.sh

demo: all ## answer a question from a long document with the whole pipeline
	@scripts/demo.sh

check: deps ## build and run every test that needs no root, network or GPU (CHECK=folder: only those)
	@tests/run $(CHECK)

check-quick: deps ## the unit tests without sanitizers and two with the real processes: a minute once all is built
	@tests/run --quick $(CHECK)

check-sanitized: deps ## all of shm, scorer and agent under TSan, the real processes under ASan and UBSan (CHECK=folder or test)
	@tests/run --sanitized $(CHECK)

check-models: deps ## fetch the small real models (2.0 GB, needs pip) and run every test of them
	@scripts/hillinfer get-models
	@HILL_CHECK_MODELS=1 tests/run models

check-opencl: deps ## run kernels under oclgrind and Intel's OpenCL runtimes (RUNTIME=name: that one; 2 GB, needs pip)
	@tests/opencl/run $(RUNTIME)

bench: deps ## measure and write docs/benchmarks.md (FIGURE=name: that one alone; QUICK=1: a smoke run; FULL=1)
	@tools/bench/run $(if $(QUICK),--quick) $(if $(FULL),--full) $(FIGURE)

chaos: all ## kill and stop processes at random (ROUNDS=40 or TIME=seconds each, SEED, MODELS, SEQUENCES, HANG_MS, OUT=file)
	@$(MAKE) --no-print-directory $(O)/tests/chaos/chaos
	@tests/chaos/run $(if $(OUT),-o $(OUT))

attach-cycles: all ## attach, detach and kill drives in mid-decode (CYCLES=100 a setting, MODELS="wired smollm2", SETTINGS, SEED)
	@CYCLES=$${CYCLES:-100} MODELS="$${MODELS:-wired smollm2}" SETTINGS="$${SETTINGS:-wide tight several}" \
	tests/integration/test_attach.sh

remote-drive: all ## a drive on a second host, with delay, loss, outages and strangers (root; DELAY_MS=5, LOSS=1, TOKENS=200, SEED)
	@$(MAKE) --no-print-directory $(O)/tests/net/slow_link
	@tests/long/remote_drive.sh

soak: all ## mixed requests for MINUTES=60: memory, descriptors and files stay flat, and step time, judged where the machine was quiet (SEED, OUT=file)
	@tests/long/soak.sh $(if $(OUT),-o $(OUT))

fuzz: deps ## run the fuzzers, FUZZ_SECONDS=30 each (FUZZ=name: that one alone; FUZZ_MINUTES: over and over; OUT=file)
	@FUZZ_SECONDS='$(or $(FUZZ_SECONDS),30)' FUZZ_MINUTES='$(or $(FUZZ_MINUTES),0)' tests/fuzz/run $(if $(OUT),-o $(OUT)) $(FUZZ)

screenshots: all ## make the pictures of page and terminal in docs/ (needs chromium and SmolLM2: get-models)
	@scripts/screenshots

# every lint runs, also after one that failed; scripts/lint/README.md says what each one holds
lint: programs $(bench_objects) $(HLS_OBJECT) ## layers, circles, citations, columns, names, shellcheck, clang-format
	@failed=0; run() { echo "  LINT  $$1"; shift; "$$@" || failed=1; }; \
	run includes scripts/lint/includes; \
	run circles scripts/lint/circles $(O); \
	run citations scripts/lint/citations; \
	run columns scripts/lint/columns; \
	run names scripts/lint/names; \
	run shellcheck shellcheck -x $(SHELL_SOURCES); \
	run clang-format sh -c "git ls-files '*.c' '*.h' | xargs clang-format --dry-run --Werror"; \
	exit $$failed

format: ## rewrite the C sources with clang-format
	git ls-files '*.c' '*.h' | xargs clang-format -i

MANUAL := build/manual
manual: programs ## man pages and shell completion, made of what --help says, into build/manual
	@rm -rf $(MANUAL) && scripts/manual $(MANUAL)

# no packages are fetched: what is missing shows when it is built
install: manual ## install into PREFIX (default /usr/local; DESTDIR before it); fetches nothing
	install -d $(DESTDIR)$(PREFIX)/bin
	install -d $(DESTDIR)$(PREFIX)/share/hillinfer
	install -m755 $(addprefix build/bin/,$(PROGRAMS)) scripts/hillinfer $(DESTDIR)$(PREFIX)/bin
	install -m755 scripts/chat-template-helper.py scripts/get-models $(DESTDIR)$(PREFIX)/share/hillinfer
	install -m644 scripts/models.tsv $(DESTDIR)$(PREFIX)/share/hillinfer
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/user
	sed 's#@PREFIX@#$(PREFIX)#' packaging/hillinfer.service >$(DESTDIR)$(PREFIX)/lib/systemd/user/hillinfer.service
	chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/user/hillinfer.service
	install -d $(DESTDIR)$(PREFIX)/share/doc/hillinfer
	install -m644 docs/http.md docs/interface.md $(DESTDIR)$(PREFIX)/share/doc/hillinfer
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(addprefix $(DESTDIR)$(PREFIX)/share/,$(COMPLETIONS))
	install -m644 $(MANUAL)/man1/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m644 $(MANUAL)/bash/hillinfer $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	install -m644 $(MANUAL)/zsh/_hillinfer $(DESTDIR)$(PREFIX)/share/zsh/$(ZSH_FOLDER)
	install -m644 $(MANUAL)/fish/hillinfer.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
# of its own packages and of /usr/local Debian's zsh reads different folders
ZSH_FOLDER := $(if $(filter /usr,$(PREFIX)),vendor-completions,site-functions)
COMPLETIONS := bash-completion/completions zsh/$(ZSH_FOLDER) fish/vendor_completions.d

uninstall: ## remove what install put there
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,$(PROGRAMS) hillinfer)
	rm -rf $(DESTDIR)$(PREFIX)/share/hillinfer $(DESTDIR)$(PREFIX)/share/doc/hillinfer
	rm -f $(DESTDIR)$(PREFIX)/lib/systemd/user/hillinfer.service
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/share/man/man1/,hillinfer.1 hillctl*.1 $(addsuffix .1,$(filter hill-%,$(PROGRAMS))))
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions/hillinfer zsh/$(ZSH_FOLDER)/_hillinfer \
	fish/vendor_completions.d/hillinfer.fish)

clean: ## remove everything that was built
	rm -rf build

help: ## this list
	@awk -F':.*## ' '/^[a-z -]+:.*## /{printf "  %-28s %s\n", $$1, $$2}' Makefile
