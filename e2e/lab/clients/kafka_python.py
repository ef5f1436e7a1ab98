"""kafka-python. README.md has the contract."""
from kafka import ConsumerGroupMetadata, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import CommitFailedError, RebalanceInProgressError

from script import *

admin = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)
admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1), NewTopic(GONE, 1, 1)])
listed("created", admin.list_topics())
admin.delete_topics([GONE])
listed("deleted", admin.list_topics())


def sender(codec):
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", compression_type=None if codec == "none" else codec)
    return lambda p, t, v: producer.send(TOPIC, v.encode(), key(v).encode(), partition=p, timestamp_ms=t).get(60)


for codec in CODECS:
    send = sender(codec)
    for p, t, v in records(codec):
        send(p, t, v)
        line("sent", value=v)



def send_all(kind, sent):
    acks = {"acks1": 1, "acks0": 0, "idempotent": "all"}[kind]
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, acks=acks, enable_idempotence=kind == "idempotent")
    for p, t, v in sent:
        producer.send(TOPIC, v.encode(), key(v).encode(), partition=p, timestamp_ms=t).get(60)
    producer.close()


guarantees(send_all)

consumer = KafkaConsumer(bootstrap_servers=BOOTSTRAP)
tp = TopicPartition(TOPIC, 1)
consumer.assign([tp])
consumer.seek(tp, consumer.offsets_for_times({tp: SOUGHT})[tp].offset)
record = next(consumer)
line("sought", offset=record.offset, value=record.value.decode())
consumer.close()


producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id=TRANSACTIONAL_ID)
producer.init_transactions()


def send_in_transaction(p, t, v):
    producer.send(TOPIC, v.encode(), key(v).encode(), partition=p, timestamp_ms=t).get(60)


def offsets():
    producer.send_offsets_to_transaction({tp: OffsetAndMetadata(COPIED_OFFSET, "", -1)}, ConsumerGroupMetadata(COPIED, -1, "", None))


transactions(producer.begin_transaction, send_in_transaction, offsets, producer.commit_transaction, producer.abort_transaction)
producer.close()


def consume(leaving):
    consumer = KafkaConsumer(TOPIC, bootstrap_servers=BOOTSTRAP, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False, isolation_level="read_committed", heartbeat_interval_ms=500)
    while not leaving.is_set():
        for batch in consumer.poll(timeout_ms=100).values():
            yield from (r.value.decode() for r in batch)
        try:
            consumer.commit()
        except (CommitFailedError, RebalanceInProgressError):  # of a rebalance, which is over or not
            pass
    consumer.close()


group(sender("none"), consume)
