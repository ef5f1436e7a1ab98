"""Consumes a topic in a group of the consumer protocol, or of the classic one with an assignor, and
prints "partition offset value" for each record, until it is told to end: then it commits, leaves and
prints "left". Where a commit is refused, because the group rebalances, it prints "# commit refused".

    consumer.py HOST:PORT GROUP TOPIC [ASSIGNOR]
"""

import signal
import sys

from confluent_kafka import Consumer, KafkaError

ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
protocol = {"group.protocol": "consumer"}
if len(sys.argv) > 4:
    protocol = {"group.protocol": "classic", "partition.assignment.strategy": sys.argv[4], "heartbeat.interval.ms": 500}


def committed(error, partitions):
    errors = [e for e in [error] + [p.error for p in partitions or []] if e and e.code() != KafkaError._NO_OFFSET]
    if errors:
        print("# commit refused:", *errors, flush=True)


consumer = Consumer({
    "on_commit": committed,
    "bootstrap.servers": sys.argv[1],
    "group.id": sys.argv[2],
    **protocol,
    "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 200,
})
consumer.subscribe([sys.argv[3]])
while not ended:
    message = consumer.poll(0.1)
    if message is None:
        continue
    if message.error():
        print("#", message.error(), flush=True)
        continue
    print(message.partition(), message.offset(), message.value().decode(), flush=True)
consumer.close()
print("left", flush=True)
