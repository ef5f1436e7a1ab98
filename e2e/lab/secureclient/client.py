"""Produces and consumes ten records over SASL_SSL with librdkafka: secureclient.py BOOTSTRAP CA MECHANISM USER PASSWORD TOPIC."""
import sys

from confluent_kafka import Consumer, Producer

bootstrap, ca, mechanism, user, password, topic = sys.argv[1:]
config = {"bootstrap.servers": bootstrap, "security.protocol": "SASL_SSL", "ssl.ca.location": ca,
          "sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
failed = []
producer = Producer(config)
for i in range(10):
    producer.produce(topic, f"{mechanism} {i}", on_delivery=lambda err, _: err and failed.append(err))
if producer.flush(30) or failed:
    sys.exit(f"not delivered: {failed}")
consumer = Consumer({**config, "group.id": mechanism, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
left = {f"{mechanism} {i}" for i in range(10)}
while left:
    m = consumer.poll(30)
    if m is None or m.error():
        sys.exit(f"left {left}: {m and m.error()}")
    left.discard(m.value().decode())
consumer.close()
print("ok", mechanism)
