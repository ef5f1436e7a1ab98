"""Consumes a topic in a group of the consumer protocol, and prints "partition offset value" for each
record, until it is told to end: then it commits, leaves and prints "left".

    consumer.py HOST:PORT GROUP TOPIC
"""

import signal
import sys

from confluent_kafka import Consumer

ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
consumer = Consumer({
    "bootstrap.servers": sys.argv[1],
    "group.id": sys.argv[2],
    "group.protocol": "consumer",
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
