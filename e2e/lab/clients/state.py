"""Prints key and value of the committed records of a partition, from its begin to the record with the key "end":
state.py LIBRARY BOOTSTRAP TOPIC. A record without value has the value "null"."""
import sys

LIBRARY, BOOTSTRAP, TOPIC = sys.argv[1:]


def confluent_kafka():
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": "state", "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while True:
        message = consumer.poll(1)
        if message is not None:
            if message.error():
                raise Exception(message.error())
            yield message.key(), message.value()


def kafka_python():
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=BOOTSTRAP, isolation_level="read_committed")
    partition = TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    for record in consumer:
        yield record.key, record.value


def aiokafka():
    import asyncio

    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def read():
        consumer = AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP, isolation_level="read_committed")
        await consumer.start()
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        records = []
        async for record in consumer:
            records.append((record.key, record.value))
            if record.key == b"end":
                break
        await consumer.stop()
        return records

    yield from asyncio.run(read())


for key, value in {"confluent-kafka": confluent_kafka, "kafka-python": kafka_python, "aiokafka": aiokafka}[LIBRARY]():
    print(key.decode(), "null" if value is None else value.decode(), sep="\t", flush=True)
    if key == b"end":
        break
