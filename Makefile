# All tasks of the project. Each target is one or two commands that can also be typed by hand.

CARGO   ?= cargo
PYTHON  ?= python3
PREFIX  ?= /usr/local
# A distribution may keep libraries elsewhere, as /usr/lib64 or /usr/lib/x86_64-linux-gnu.
LIBDIR  ?= $(PREFIX)/lib
SYSCONFDIR ?= /etc
# For packages: everything is put below it, and nothing that is installed names it.
DESTDIR ?=

# Of property tests, so that a run says the same as the one before; `make test-random` looks
# further.
SEED    ?= 1
CASES   ?= 1000
ROUNDS  ?= 5
# Random systems that nobody has seen: the day, followed by the round.
HELD_OUT ?= $(shell date -u +%Y%m%d)
PURE    := forebay-model forebay-policy forebay-sim forebay-coordinator forebay-wire

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# Number of the C interface, the soname's; crates/forebay-capi/build.rs has it as well.
ABI     := $(shell sed -n 's/^const ABI: u32 = \(.*\);/\1/p' crates/forebay-capi/build.rs)
# `dist` optimises across crates, which takes twice as long: for what is handed out and measured.
PROFILE ?= release
TARGET  := $(or $(CARGO_TARGET_DIR),target)
BUILT   := $(TARGET)/$(PROFILE)
BUILT_IS_GIVEN := $(filter command,$(firstword $(origin BUILT)))
DIST_PROFILE := $(if $(filter file,$(origin PROFILE)),dist,$(PROFILE))
ROOT     = $(DESTDIR)$(PREFIX)
LIB      = $(DESTDIR)$(LIBDIR)
PLACES   = -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@SYSCONFDIR@|$(SYSCONFDIR)|' -e 's|@VERSION@|$(VERSION)|'

# What packages contain.
SHIPPED := $(addprefix --package forebay-,cli capi preload jni)

# The jar, with the native library in a directory.
define JAR
java/pack-native $(1)/libforebay_jni.so && mvn --quiet --batch-mode --file java/pom.xml -Dstyle.color=never --projects spark,workloads -DskipTests package && cp target/java/spark/forebay-spark.jar target/forebay-spark.jar
endef

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## The program and all libraries (C, Python, Java, for forebay run), in target/release (PROFILE=dist)
	$(CARGO) build --profile $(PROFILE) --locked

.PHONY: test
test: test-rust test-bench test-python test-java test-examples ## All tests

.PHONY: test-rust
test-rust: ## Tests of all crates; many start real agents
	PROPTEST_RNG_SEED=$(SEED) CARGO=$(CARGO) $(PYTHON) .ci/test-rust

.PHONY: test-random
test-random: ## The property tests of the pure crates on more inputs, different ones each time (CASES=1000 ROUNDS=5)
	for round in $$(seq $(ROUNDS)); do \
	    FOREBAY_HELD_OUT_SEED=$(HELD_OUT)$$round PROPTEST_CASES=$(CASES) $(CARGO) test --release --locked --lib --tests $(addprefix -p ,$(PURE)) || exit 1; \
	done

.PHONY: test-bench
test-bench: ## Tests of the benchmarks' own code, and of the packages on small files
	cd bench && timeout 1800 $(PYTHON) -m unittest discover -s tests -t .
	cd java/mapreduce && timeout 1800 $(PYTHON) -m unittest discover -s tests -t .
	cd packaging/dist && timeout 1800 $(PYTHON) -m unittest discover -s tests -t .

.PHONY: test-python
test-python: ## Tests of the Python package
	PYTHON=$(PYTHON) .ci/test-python

.PHONY: test-examples
test-examples: ## The examples of checkpoints: killed, and restarted from memory; LAMMPS, h5py and PyTorch from Debian where they are installed, Orbax from PyPI the first time (700 MB)
	@[ -x target/orbax/bin/python ] || { $(PYTHON) -m venv target/orbax && target/orbax/bin/pip install --quiet --disable-pip-version-check jax==0.10.2 orbax-checkpoint==0.12.8 || echo "Orbax cannot be installed; its example is left out"; }
	cd examples/checkpoints && timeout 600 $(PYTHON) -m unittest -v

.PHONY: test-posix
test-posix: ## File system tests of other projects, on a PFS and on the same PFS through Forebay: pjdfstest, fsx, stress-ng, fio, SQLite, PostgreSQL ...; downloads what is missing (LAB=moosefs, OPS=10000000, ARGS="--only fsx --kill-agent"; docs/programs.md)
	$(CARGO) build --locked
	$(PYTHON) python/posix $(or $(CARGO_TARGET_DIR),target)/debug/forebay $(if $(LAB),--lab $(LAB)) $(if $(OPS),--ops $(OPS)) $(ARGS)

.PHONY: test-write-back
test-write-back: ## A million random calls on files that are written back, in memory, with a log and with two copies, and the same on plain files; half an hour (STEPS=100000, SEED=2)
	$(CARGO) build --lib --bins --locked
	FOREBAY_RANDOM_STEPS=$(or $(STEPS),1000000) $(if $(filter command line environment,$(origin SEED)),FOREBAY_RANDOM_SEED=$(SEED)) \
	    $(CARGO) test --locked -p forebay-cli --test faults random_calls_on_files -- --nocapture

.PHONY: test-hand-over
test-hand-over: ## 100,000 hand-overs of files between mounts on two nodes of a lab, as root: each open after a close must see what was closed (LAB=moosefs, ARGS="--count 1000")
	$(CARGO) build --locked
	$(PYTHON) python/posix/hand_over.py $(or $(CARGO_TARGET_DIR),target)/debug/forebay $(if $(LAB),--lab $(LAB)) $(ARGS)

.PHONY: test-slurm
test-slurm: ## Real Slurm, as root: 100 jobs with directives while its daemons, agents and the coordinator are killed; downloads slurm the first time (ARGS=--smoke: one job; ARGS="--jobs 30 --seed 7")
	$(if $(FOREBAY_BIN),,$(CARGO) build --locked)
	$(PYTHON) python/slurm $(or $(FOREBAY_BIN),$(or $(CARGO_TARGET_DIR),target)/debug/forebay) $(ARGS)

.PHONY: test-preload
test-preload: ## The part of test-posix with the test suites of Python, GNU tar and coreutils, without and with forebay run; half an hour
	$(MAKE) test-posix ARGS="--only python,tar,coreutils --ways run $(ARGS)"

.PHONY: dist
dist: ## The release in target/packages, from the profile `dist`: tarball, deb, rpm, OCI image, chart, wheel, jar, SBOM, licences, SHA256SUMS (BUILT=DIR packs what is built there, without wheel and jar)
	$(if $(BUILT_IS_GIVEN),,$(CARGO) build --profile $(DIST_PROFILE) --locked $(SHIPPED))
	$(if $(BUILT_IS_GIVEN),,$(call JAR,$(TARGET)/$(DIST_PROFILE)))
	$(if $(BUILT_IS_GIVEN),,$(PYTHON) packaging/wheel/build --profile $(DIST_PROFILE))
	$(PYTHON) packaging/dist/build --out $(TARGET)/packages $(if $(BUILT_IS_GIVEN),--built $(BUILT),--built $(TARGET)/$(DIST_PROFILE) --jar target/forebay-spark.jar --wheel "$$(ls -t $(TARGET)/wheels/*.whl | head -n 1)")

# The oldest glibc for which `make dist-old-glibc` builds.
GLIBC   ?= 2.28
OLD_GLIBC := $(TARGET)/$(shell uname -m)-unknown-linux-gnu/$(DIST_PROFILE)

.PHONY: dist-old-glibc
dist-old-glibc: ## The same for systems with an old glibc, without wheel and jar, in target/packages: RHEL 8, Ubuntu 20.04; Zig's linker comes from PyPI the first time (GLIBC=2.28)
	test -x $(TARGET)/zig/bin/cargo-zigbuild || { $(PYTHON) -m venv $(TARGET)/zig && $(TARGET)/zig/bin/pip install --quiet --disable-pip-version-check ziglang==0.17.1 cargo-zigbuild==0.24.1; }
	PATH=$(abspath $(TARGET)/zig/bin):$$PATH $(CARGO) zigbuild --target $(shell uname -m)-unknown-linux-gnu.$(GLIBC) --profile $(DIST_PROFILE) --locked $(SHIPPED)
	packaging/dist/oldest-glibc $(GLIBC) $(OLD_GLIBC)/forebay $(OLD_GLIBC)/libforebay.so $(OLD_GLIBC)/libforebay_preload.so
	$(PYTHON) packaging/dist/build --out $(TARGET)/packages --built $(OLD_GLIBC)

.PHONY: test-dist
test-dist: ## Installs, upgrades, downgrades and removes the packages of target/packages in clean root file systems, as root; debootstrap downloads Debian the first time (OLD=DIR: from the packages of another version there)
	packaging/dist/test $(TARGET)/packages $(OLD)

.PHONY: wheel
wheel: ## The Python wheel with the program and its library, in target/wheels
	$(PYTHON) packaging/wheel/build

.PHONY: test-wheel
test-wheel: wheel ## Test the wheel in a separate environment, with h5py, netCDF4, ADIOS2, zarr, DuckDB, polars and others by path; downloads 600 MB from PyPI the first time
	PYTHON=$(PYTHON) packaging/wheel/test

.PHONY: java
java: build ## The jar for Spark and Hadoop with its native library: target/forebay-spark.jar; and WordCount and Sort to try it
	$(call JAR,$(BUILT))

.PHONY: test-java
test-java: ## Tests of the jar: Hadoop's contract tests and our own
	java/run-tests

.PHONY: test-shuffle-suites
test-shuffle-suites: ## Spark's own tests of shuffles, Spark 3.5 and 4, with map outputs in the tier; 15 minutes (ARGS="--projects plugin-tests/spark4 --also-make")
	java/run-tests -Dtest=SparkSuitesTest -Dforebay.suites=all -Dsurefire.failIfNoSpecifiedTests=false -Dsurefire.rerunFailingTestsCount=0 $(ARGS)

.PHONY: test-spark
test-spark: java ## The jar in Spark 3.5 and 4.3, which come from PyPI the first time (900 MB)
	PYTHON=$(PYTHON) java/test-spark

.PHONY: test-mapreduce
test-mapreduce: java ## Hadoop's TeraSort and TestDFSIO on YARN, beside the same without Forebay (108 MB from Maven; ARGS="--size 500")
	PYTHON=$(PYTHON) java/test-mapreduce $(ARGS)

.PHONY: lint
lint: ## Format and lints; changes nothing
	$(CARGO) fmt --all --check
	rustfmt --check --edition 2024 --config-path . fuzz/bodies/*.rs fuzz/fuzz_targets/*.rs
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	.ci/comment-width
	packaging/console/build --check

.PHONY: console
console: ## The compiled page of the web console, from its TypeScript (node-typescript)
	packaging/console/build

.PHONY: demo
demo: build ## The demo: an analysis and Spark jobs, directly from a slow file system and through Forebay
	$(PYTHON) python/demo

.PHONY: lab-demo
lab-demo: build ## The demo on Spark, on four nodes with a real PFS, as root (LAB=glusterfs)
	$(PYTHON) python/demo --lab $(or $(LAB),moosefs)

.PHONY: lab
lab: build ## A cluster with a real parallel file system on this machine, as root (ARGS="--pfs glusterfs"; docs/lab.md)
	$(BUILT)/forebay lab up --install $(ARGS)

.PHONY: lab-down
lab-down: ## Stops the lab, and removes what a crash has left behind
	$(BUILT)/forebay lab down

.PHONY: bench
bench: build ## Every figure with its reference, in target/bench.json (ONLY=read.cached for one group, RUNS=9)
	$(BUILT)/forebay-bench $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS))

.PHONY: bench-predict
bench-predict: ## The predictor of I/O phases beside FTIO on the same traces; a minute, and PyPI the first time (ARGS="--seeds 3")
	$(CARGO) build --profile $(PROFILE) --locked -p forebay-policy --example predict
	[ -x target/ftio/bin/python ] || { $(PYTHON) -m venv target/ftio && target/ftio/bin/pip install --quiet ftio-hpc==0.0.9 darshan==3.5.0; }
	target/ftio/bin/python bench/predict.py $(BUILT)/examples/predict $(ARGS)

.PHONY: bench-intercept
bench-intercept: build ## What a cached read costs through forebay run, beside a read of a tmpfs
	$(PYTHON) bench/intercept.py $(BUILT)/forebay $(ARGS)

.PHONY: bench-mount
bench-mount: build ## Cost of reads, writes and name lookups through a mount, compared with tmpfs and the kernel's passthrough, as root (ARGS="--runs 15")
	$(PYTHON) bench/mount.py $(BUILT)/forebay $(ARGS)

.PHONY: bench-broadcast
bench-broadcast: build ## Many nodes of a lab read one file at once, each behind a link of its own, as root (ARGS="--nodes 8")
	$(PYTHON) bench/broadcast.py $(BUILT)/forebay $(ARGS)

.PHONY: bench-frozen
bench-frozen: build ## Start of Python from a PFS with slow names, with and without a frozen tree, as root (PYTHON=target/venv/bin/python)
	$(PYTHON) bench/frozen.py $(BUILT)/forebay $(ARGS)

.PHONY: bench-mount-memory
bench-mount-memory: build ## Memory of a mount's process with many open files, as root (ARGS="--files 12500")
	$(PYTHON) bench/mount_memory.py $(BUILT)/forebay $(ARGS)

.PHONY: bench-write-back
bench-write-back: build ## How long a writer waits with write-back, beside the tmpfs and the PFS, as root (ARGS="--pfs DIR"; ARGS="--restarts --link 1gbit": restarts after the loss of the writer's node)
	$(PYTHON) bench/write_back.py $(BUILT)/forebay $(ARGS)

.PHONY: bench-shared-file
bench-shared-file: build ## MPI ranks on two nodes write one file, straight and with write-back, as root (ARGS="--ranks 4")
	$(PYTHON) bench/shared_file.py $(BUILT)/forebay $(ARGS)

.PHONY: bench-mountain
bench-mountain: build ## How fast a program reads over the size of its data and its skips: table, CSV and plot in target/mountain, as root; two minutes (ARGS="--capacity-mib 512")
	$(PYTHON) bench/mountain.py $(BUILT)/forebay $(ARGS)

.PHONY: bench-observer
bench-observer: build ## What the preloaded observer costs a writer, in paired runs, on a quiet machine (ARGS="--pairs 51")
	$(PYTHON) bench/observer.py $(BUILT)/libforebay_preload.so $(ARGS)

.PHONY: bench-ramps
bench-ramps: build ## Programs that take memory at random rates beside an agent, under each law, as root (RAMPS=1000 SEED=2)
	$(BUILT)/forebay-bench --only memory.ramps --ramps $(or $(RAMPS),200) $(if $(filter command line environment,$(origin SEED)),--seed $(SEED))

.PHONY: bench-spark
bench-spark: build ## Gain and cost of waves on Spark, at several speeds of the PFS; about 40 minutes (LAB=moosefs for the lab's cluster, ARGS="--setting fast --repeats 5")
	$(PYTHON) python/demo --study $(if $(LAB),--lab $(LAB)) $(ARGS)

.PHONY: bench-shuffle
bench-shuffle: build java ## Spark's shuffle through the tier beside its own, 10 MB to 1 GB, 2 to 2,000 reducers; about 15 minutes, after `make test-java` (ARGS="--disk 100 --sizes 300 --reducers 16": on a slow local disk, as root)
	$(PYTHON) java/shuffle-bench.py $(ARGS)

.PHONY: bench-tpch
bench-tpch: build java ## TPC-H on Spark, alone and with Forebay: bytes from the PFS of 22 queries; about 10 minutes, and PyPI the first time (LAB=moosefs for the lab's cluster, as root; ARGS="--format orc", ARGS="--scale 3 --times", ARGS=--faults, ARGS=--quick: one minute)
	$(PYTHON) python/tpch $(if $(LAB),--lab $(LAB)) $(ARGS)

.PHONY: experiment-memory
experiment-memory: build ## HPL and a memory hog beside Spark ML on a node whose tier shrinks for them, as root; about 30 minutes (ARGS=--quick: two minutes; docs/benchmarks.md)
	$(PYTHON) python/memory $(ARGS)

.PHONY: experiment-eley
experiment-eley: build ## Spark beside an MPI writer under each planner, in the lab, as root; deadlines, map times, the simulator; about 25 minutes (ARGS=--quick: three minutes; docs/interference.md)
	$(PYTHON) python/eley $(ARGS)

.PHONY: experiment-checkpoint
experiment-checkpoint: build ## Checkpoints straight and with write-back, beside a writer with deadlines and beside Spark, in the lab, as root; about 25 minutes (ARGS=--quick: five minutes; docs/benchmarks.md)
	$(PYTHON) python/eley --checkpoints $(ARGS)

.PHONY: experiment-burst
experiment-burst: build ## MPI jobs that write steps to a shared file system under each order of cluster.access, as root; the simulator; about 25 minutes (ARGS=--quick: two minutes; docs/benchmarks.md)
	$(PYTHON) python/burst $(ARGS)

.PHONY: experiment-shipping
experiment-shipping: build ## Spark on storage servers and on compute nodes, beside fio or BT-IO's pattern (ARGS="--client btio"), in the lab, as root; hours (ARGS=--quick: little data; ARGS="--quick --rate 2": links are the bottleneck; docs/shipping.md)
	$(PYTHON) python/shipping $(ARGS)

.PHONY: chaos
chaos: build ## Kills, stops and starves everything while readers check every byte (MINUTES=60, SEED=7, PFS="ext4 moosefs"; docs/chaos.md)
	$(BUILT)/forebay-chaos run --seconds $$(($(or $(MINUTES),60) * 60)) $(addprefix --pfs ,$(PFS)) $(if $(filter command line environment,$(origin SEED)),--seed $(SEED)) $(ARGS)

.PHONY: test-upgrade
test-upgrade: build java ## Replaces all programs of a cluster by another version's and then back, while Spark, MPI and readers work, as root; needs OpenMPI with mpi4py, and Spark of `make demo` (OLD=DIR/debug/forebay, with that version's jar in DIR; ARGS="--candidates 3" needs etcd)
	$(PYTHON) bench/rolling_upgrade.py $(or $(OLD),$(BUILT)/forebay) $(BUILT)/forebay $(ARGS)

.PHONY: chaos-coordinator
chaos-coordinator: build ## Kills and stops candidates for the coordinator, members of etcd and agents while programs on other nodes read what is written, as root; needs etcd (KILLS=200, ARGS="--seed 7")
	$(PYTHON) bench/chaos_coordinator.py $(BUILT)/forebay --minutes 60 --kills $(or $(KILLS),200) $(ARGS)

.PHONY: chaos-writes
chaos-writes: build ## Kills programs, agents and nodes while programs write with write-back, then with copies on a second node, then files that nodes share (as root), and compares every file with what was promised (MINUTES=10 for each, ARGS="--seed 7", LAB=moosefs: on a lab whose servers are killed as well)
	$(PYTHON) bench/chaos_writes.py $(BUILT)/forebay --minutes $(or $(MINUTES),10) $(if $(LAB),--pfs $(LAB)) $(ARGS)
	$(PYTHON) bench/chaos_copies.py $(BUILT)/forebay --minutes $(or $(MINUTES),10) $(ARGS)
	$(PYTHON) bench/chaos_shared.py $(BUILT)/forebay --minutes $(or $(MINUTES),10) $(ARGS)

.PHONY: abuse
abuse: build ## Attacks a mount, its agent and its console as an ordinary user, as root, and times the calls of others (MINUTES=60, ARGS="--seed 7")
	$(PYTHON) bench/abuse.py $(BUILT)/forebay --minutes $(or $(MINUTES),60) $(ARGS)

.PHONY: docs
docs: ## Reference of the crates for developers, in target/doc
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items --locked

.PHONY: site
site: ## The documentation as a web site, links checked, in target/site
	PYTHON=$(PYTHON) packaging/site/build

.PHONY: completions
completions: build ## Shell completions and man pages, in target/share
	mkdir -p target/share/completions
	for shell in bash zsh fish; do $(BUILT)/forebay completions $$shell > target/share/completions/$$shell || exit 1; done
	$(BUILT)/forebay man target/share/man
	for program in sim lab; do $(BUILT)/forebay-$$program man > target/share/man/forebay-$$program.1 || exit 1; done

# Does not build, so that `sudo make install` needs no compiler and leaves nothing of root's in
# target/.
.PHONY: install
install: ## Programs, C library, completions, man pages and systemd unit below PREFIX
	@test -x $(BUILT)/forebay -a -f $(BUILT)/libforebay.so || { echo "nothing to install: run \`make build\` first" >&2; exit 1; }
	install -D -m 755 $(BUILT)/forebay $(ROOT)/bin/forebay
	install -D -m 755 $(BUILT)/forebay-sim $(ROOT)/bin/forebay-sim
	install -D -m 755 $(BUILT)/forebay-lab $(ROOT)/bin/forebay-lab
	install -D -m 644 crates/forebay-capi/include/forebay.h $(ROOT)/include/forebay.h
	install -D -m 644 $(BUILT)/libforebay.a $(LIB)/libforebay.a
	install -D -m 755 $(BUILT)/libforebay.so $(LIB)/libforebay.so.$(VERSION)
	install -D -m 755 $(BUILT)/libforebay_preload.so $(ROOT)/lib/forebay/libforebay_preload.so
	install -D -m 755 packaging/mount.fuse.forebay $(ROOT)/sbin/mount.fuse.forebay
	ln -sf libforebay.so.$(VERSION) $(LIB)/libforebay.so.$(ABI)
	ln -sf libforebay.so.$(ABI) $(LIB)/libforebay.so
	install -d $(LIB)/pkgconfig $(ROOT)/lib/systemd/system
	sed $(PLACES) packaging/forebay.pc.in > $(LIB)/pkgconfig/forebay.pc
	for unit in forebay forebay-coordinator; do sed $(PLACES) packaging/$$unit.service.in > $(ROOT)/lib/systemd/system/$$unit.service || exit 1; done
	install -D -m 644 packaging/forebay.toml $(ROOT)/share/doc/forebay/forebay.toml
	install -d $(ROOT)/share/forebay/slurm
	for file in forebay-job prolog epilog task-prolog burst_buffer.lua burst_buffer.conf slurm.sh; do sed $(PLACES) packaging/slurm/$$file > $(ROOT)/share/forebay/slurm/$$file || exit 1; done
	cd $(ROOT)/share/forebay/slurm && chmod 755 forebay-job prolog epilog task-prolog
	install -d $(ROOT)/share/forebay/batch
	for file in forebay-batch pbs-prologue pbs-epilogue flux-prolog flux-epilog batch.sh; do sed $(PLACES) packaging/batch/$$file > $(ROOT)/share/forebay/batch/$$file || exit 1; done
	cd $(ROOT)/share/forebay/batch && chmod 755 forebay-batch pbs-prologue pbs-epilogue flux-prolog flux-epilog
	for file in Chart.yaml values.yaml values.schema.json templates/daemonset.yaml templates/NOTES.txt; do install -D -m 644 packaging/kubernetes/forebay/$$file $(ROOT)/share/forebay/kubernetes/forebay/$$file || exit 1; done
	install -D -m 644 LICENSE $(ROOT)/share/doc/forebay/LICENSE
	install -d $(ROOT)/share/bash-completion/completions $(ROOT)/share/zsh/site-functions
	install -d $(ROOT)/share/fish/vendor_completions.d $(ROOT)/share/man/man1
	$(BUILT)/forebay completions bash > $(ROOT)/share/bash-completion/completions/forebay
	$(BUILT)/forebay completions zsh > $(ROOT)/share/zsh/site-functions/_forebay
	$(BUILT)/forebay completions fish > $(ROOT)/share/fish/vendor_completions.d/forebay.fish
	$(BUILT)/forebay man $(ROOT)/share/man/man1
	for program in sim lab; do $(BUILT)/forebay-$$program man > $(ROOT)/share/man/man1/forebay-$$program.1 || exit 1; done

.PHONY: ci
ci: ## What continuous integration runs, on this machine
	.ci/run

.PHONY: clean
clean: ## Removes what was built
	$(CARGO) clean
	rm -rf fuzz/target fuzz/corpus fuzz/artifacts
