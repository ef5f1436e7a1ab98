#!/usr/bin/env python3
"""A clickstream producer with confluent-kafka and its Avro serializer.

    pip install 'confluent-kafka[avro,schemaregistry]'
    python examples/python/produce.py --topic clicks --count 100000
"""

import argparse
import datetime
import json
import pathlib
import sys

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

ACTIONS = ["VIEW", "CLICK", "CART", "BUY"]
COUNTRIES = ["DE", "FR", "JP", "BR", "US"]
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


def click_at(i):
    """The same for the same i in each of the examples' languages."""
    action = ACTIONS[i % 4]
    return {
        "event_id": i,
        "user": f"user-{i * 7919 % 10007}",
        "page": f"/page/{i % 500}",
        "action": action,
        "referrer": f"https://example.com/{i % 50}" if i % 3 else None,
        "at": START + datetime.timedelta(milliseconds=i * 37),
        "dwell_ms": i * 31 % 60000,
        "amount": i % 1000 / 4 if action == "BUY" else None,
        "geo": {"country": COUNTRIES[i % 5], "city": f"city-{i % 97}" if i % 7 else None},
        "tags": {"variant": "ab"[i % 2], "build": str(i % 10)},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--registry", default="http://127.0.0.1:8081")
    parser.add_argument("--topic", default="clicks")
    parser.add_argument("--schema", default=str(pathlib.Path(__file__).parent.parent / "click.avsc"))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="event_id of the first record")
    args = parser.parse_args()

    registry = SchemaRegistryClient({"url": args.registry})
    serialize = AvroSerializer(registry, pathlib.Path(args.schema).read_text())
    context = SerializationContext(args.topic, MessageField.VALUE)
    producer = Producer({"bootstrap.servers": args.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    done = {"acked": 0, "sum_dwell_ms": 0, "sum_event_id": 0}

    def delivered(click):
        def callback(err, _):
            if err:
                sys.exit(f"record {click['event_id']}: {err}")
            done["acked"] += 1
            done["sum_dwell_ms"] += click["dwell_ms"]
            done["sum_event_id"] += click["event_id"]

        return callback

    for i in range(args.first, args.first + args.count):
        click = click_at(i)
        value = serialize(click, context)
        while True:
            try:
                producer.produce(args.topic, key=click["user"], value=value, on_delivery=delivered(click))
                break
            except BufferError:  # the local queue is full: let some go
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    print(json.dumps(done))


if __name__ == "__main__":
    main()
