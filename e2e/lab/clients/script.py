"""What the Python clients have in common. README.md has the contract."""
import json
import os
import sys
import threading
import time
import traceback

BOOTSTRAP, TOPIC, CODECS = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
PARTITIONS, GONE, GROUP = 4, TOPIC + "-gone", TOPIC + "-group"
TRANSACTIONAL_ID, COPIED, COPIED_OFFSET = TOPIC + "-transaction", TOPIC + "-copied", 7
BEGIN = int(sys.argv[4])
SOUGHT = BEGIN + 4500
_printing = threading.Lock()


def line(step, **fields):
    with _printing:
        print(json.dumps({"step": step, **fields}), flush=True)


def listed(step, names):
    line(step, topic=TOPIC in names, gone=GONE in names)


def records(codec):
    """partition, timestamp, value"""
    return [(i % PARTITIONS, BEGIN + i * 1000, f"{codec}-{i}") for i in range(12)]


def guarantees(send_all):
    """send_all(kind, records) sends partition, timestamp, value of each with a producer of a kind, which it closes."""
    for kind in ("acks1", "acks0", "idempotent"):
        sent = [(i, BEGIN + 20_000, f"{kind}-{i}") for i in range(PARTITIONS)]
        send_all(kind, sent)
        for _, _, v in sent:
            line("sent", value=v)


def key(value):
    return value * 50


def transactions(begin, send, offsets, commit, abort):
    """Each is called as the library has it: send(partition, time, value), and offsets() for those of COPIED."""
    begin()
    for i in range(PARTITIONS):
        send(i, BEGIN, f"aborted-{i}")
    abort()
    begin()
    for i in range(PARTITIONS):
        send(i, BEGIN, f"committed-{i}")
    offsets()
    commit()
    for i in range(PARTITIONS):
        line("sent", value=f"committed-{i}")
    line("transactions")


class Member:
    """Consumes in a thread: consume(leaving) yields values until leaving is set, then commits and leaves. What a commit
    does not commit because of a rebalance comes again. Any other failure ends the program: nobody else would notice."""

    def __init__(self, name, consume):
        self.name, self.seen, self.leaving = name, set(), threading.Event()
        self.thread = threading.Thread(target=self.run, args=(consume,), daemon=True)
        self.thread.start()

    def run(self, consume):
        try:
            for value in consume(self.leaving):
                line("got", member=self.name, value=value)
                self.seen.add(value)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def leave(self):
        self.leaving.set()
        self.thread.join()


def rounds(name, send, *members):
    n = 0
    while True:
        values = [f"{name}{n}-{i}" for i in range(PARTITIONS)]
        for i, v in enumerate(values):
            send(i, BEGIN + 100_000, v)
            line("sent", value=v)
        while not set(values) <= set().union(*(set(m.seen) for m in members)):
            time.sleep(0.05)
        if all(m.seen & set(values) for m in members):
            return
        n += 1


def group(send, consume):
    a = Member("a", consume)
    rounds("one", send, a)
    b = Member("b", consume)
    rounds("both", send, a, b)
    b.leave()
    line("left")
    rounds("rest", send, a)
    a.leave()
    line("done")
