"""confluent-kafka, which is librdkafka. README.md has the contract."""
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from script import *

admin = AdminClient({"bootstrap.servers": BOOTSTRAP})


def each(futures):
    for f in futures.values():
        f.result()


each(admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1), NewTopic(GONE, 1, 1)]))
listed("created", admin.list_topics(timeout=60).topics)
each(admin.delete_topics([GONE]))
listed("deleted", admin.list_topics(timeout=60).topics)


def sender(codec, **settings):
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "compression.type": codec, "acks": "all", "linger.ms": 0, **settings})

    def send(p, t, v):
        errors = []
        producer.produce(TOPIC, v, key(v), partition=p, timestamp=t, on_delivery=lambda e, _: errors.append(e))
        producer.flush()
        assert errors == [None], errors

    return send


for codec in CODECS:
    send = sender(codec)
    for p, t, v in records(codec):
        send(p, t, v)
        line("sent", value=v)


def send_all(kind, sent):
    send = sender("none", **{"acks1": {"acks": "1"}, "acks0": {"acks": "0"}, "idempotent": {"enable.idempotence": True}}[kind])
    for p, t, v in sent:
        send(p, t, v)


guarantees(send_all)


def consumer(group=GROUP):
    return Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": group, "isolation.level": "read_committed", "auto.offset.reset": "earliest", "enable.auto.commit": False, "heartbeat.interval.ms": 500})


c = consumer()
c.assign(c.offsets_for_times([TopicPartition(TOPIC, 1, SOUGHT)], timeout=60))
record = c.poll(60)
line("sought", offset=record.offset(), value=record.value().decode())
c.close()


producer = Producer({"bootstrap.servers": BOOTSTRAP, "transactional.id": TRANSACTIONAL_ID})
producer.init_transactions(60)


def send_later(p, t, v):
    producer.produce(TOPIC, v, key(v), partition=p, timestamp=t)


def offsets():
    producer.send_offsets_to_transaction([TopicPartition(TOPIC, 1, COPIED_OFFSET)], consumer(COPIED).consumer_group_metadata())


def abort():
    producer.flush()
    producer.abort_transaction()


transactions(producer.begin_transaction, send_later, offsets, producer.commit_transaction, abort)


def consume(leaving):
    c = consumer()
    c.subscribe([TOPIC])
    while not leaving.is_set():
        r = c.poll(0.1)
        if r is not None and r.error() is None:
            yield r.value().decode()
            c.commit(r, asynchronous=False)
    c.close()


group(sender("none"), consume)
