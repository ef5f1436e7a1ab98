# make test    everything that a change must pass: installs the servers and engines it needs, then runs every level
# make check   the developer's loop, under three minutes: vet, format, staticcheck, package tests without -race
# make soak    the same properties for longer
# make bench   the numbers of docs/benchmarks.md, with machine and commit
# make bench-peer  the same rows through Kafka, Kafka Connect and the Iceberg sink, side by side, with the ratios
# make bench-kafka  the same records through an Apache Kafka broker, side by side, with the ratios
# make mutate  switches each guard off in turn; its test must fail
# make lab     installs the pinned servers, clients and engines into $(TABLETOPIC_LAB)
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
export TABLETOPIC_LAB ?= $(HOME)/.cache/tabletopic-lab
GOTESTSUM := go tool gotestsum --format pkgname --format-hide-empty-pkg
# A test that fails and then passes does not stop what is long, and is named at the end: a fault to be found, in the
# test or in what it tests. A data race stops everything, so do more than three failures. make soak runs nothing twice.
AGAIN := --rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-abort-on-data-race --rerun-fails-run-root-test --rerun-fails-report=
FUZZTIME ?= 10s

again = if [ -s $(1) ]; then echo 'failed, and passed when run again:'; cat $(1); fi; rm -f $(1)

.PHONY: test check race sim fuzz mutate e2e soak bench bench-peer bench-kafka lab vet prerequisites build

test: prerequisites vet lab race sim fuzz mutate e2e

prerequisites:
	@e2e/lab/prerequisites

lab: prerequisites
	e2e/lab/lab install postgres versitygw iceberg-rest rest-compatibility python duckdb spark trino kafka-clients kafka-clients-3.9 kafka-clients-2.8 kafka-clients-1.1 kafka-clients-0.11 kafka-tools \
		python-clients kafkajs kafkajs-codecs kafkajs-registry apicurio apicurio-serde hms moto seaweedfs

build:
	CGO_ENABLED=0 go build -trimpath -o tabletopic ./cmd/tabletopic

vet:
	@test -z "$$(gofmt -s -l $$(git ls-files '*.go'))" || { echo 'gofmt -s would change:'; gofmt -s -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go tool staticcheck ./...

check: vet
	$(GOTESTSUM) -- -vet off -short $$(go list ./... | grep -v '/e2e')

# Many tests wait: more packages at a time than there are cores. What go test vets, make vet has vetted.
race:
	$(GOTESTSUM) $(AGAIN).race-again --packages "$$(go list ./... | grep -v '/e2e')" -- -race -vet off -p $$(($$(nproc) + 2)) -timeout 40m
	@$(call again,.race-again)

# What takes three to ten times as long with the race detector, and of which make race has less or nothing.
sim:
	$(GOTESTSUM) -- -vet off -timeout 20m -run 'TestSimulation$$|TestTableSimulation|TestRestoreAtAnyMoment|TestModel$$|TestFailoverModel|TestConfigChangesNoContent|TestRequestsPer|TestInferenceOfRandomRecords|TestInferredRowsAreThoseOfTheModel|TestRandom|TestKeysRoundTrip|TestGatheredRowsAreTheSame|TestAppendedRecordsAreTheSame|TestValidationAllocatesNothing|TestAnHourOfSmallCommits|TestCleanedLogModel|TestManyPartitions' ./internal/sim ./metadata ./streamstore ./parquetio ./worker ./partition

fuzz:
	e2e/lab/fuzz $(FUZZTIME)

mutate:
	e2e/lab/mutate
	$(GOTESTSUM) -- -tags mutate -timeout 30m -run TestFindsWhatGuardsPrevent ./internal/sim

e2e:
	$(GOTESTSUM) $(AGAIN).e2e-again --packages ./e2e/... -- -vet off -timeout 60m -count 1 -parallel $$(($$(nproc) * 2))
	@$(call again,.e2e-again)

soak:
	e2e/lab/fuzz 5m
	$(GOTESTSUM) -- -race -timeout 6h -run TestSimulation ./internal/sim -sim.seeds 1000-5000
	$(GOTESTSUM) -- -timeout 6h -run TestTableSimulation ./internal/sim -sim.seeds 1000-5000
	TABLETOPIC_SOAK=1 $(GOTESTSUM) -- -timeout 2h -count 1 -run TestManyPartitionsOfAWideTable ./worker
	TABLETOPIC_SOAK=1 $(GOTESTSUM) -- -timeout 12h -count 1 ./e2e/...

bench:
	e2e/lab/bench

bench-peer:
	e2e/lab/bench-peer

bench-kafka:
	e2e/lab/bench-kafka
