"""aiokafka. README.md has the contract."""
import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import CommitFailedError

from script import *

loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()


def wait(coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(120)


async def make(kind, *args, **settings):
    client = kind(*args, bootstrap_servers=BOOTSTRAP, **settings)
    await client.start()
    return client


admin = wait(make(AIOKafkaAdminClient))
wait(admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1), NewTopic(GONE, 1, 1)]))
listed("created", wait(admin.list_topics()))
wait(admin.delete_topics([GONE]))
listed("deleted", wait(admin.list_topics()))


producers = []  # an unreferenced one closes


def sender(codec):
    producer = wait(make(AIOKafkaProducer, acks="all", compression_type=None if codec == "none" else codec))
    producers.append(producer)
    return lambda p, t, v: wait(producer.send_and_wait(TOPIC, v.encode(), key(v).encode(), partition=p, timestamp_ms=t))


for codec in CODECS:
    send = sender(codec)
    for p, t, v in records(codec):
        send(p, t, v)
        line("sent", value=v)



def send_all(kind, sent):
    acks = {"acks1": 1, "acks0": 0, "idempotent": "all"}[kind]
    producer = wait(make(AIOKafkaProducer, acks=acks, enable_idempotence=kind == "idempotent"))
    for p, t, v in sent:
        wait(producer.send_and_wait(TOPIC, v.encode(), key(v).encode(), partition=p, timestamp_ms=t))
    wait(producer.stop())


guarantees(send_all)

consumer = wait(make(AIOKafkaConsumer))
tp = TopicPartition(TOPIC, 1)


async def start_there():
    consumer.assign([tp])
    consumer.seek(tp, (await consumer.offsets_for_times({tp: SOUGHT}))[tp].offset)
    return await consumer.getone()


record = wait(start_there())
line("sought", offset=record.offset, value=record.value.decode())
wait(consumer.stop())


producer = wait(make(AIOKafkaProducer, transactional_id=TRANSACTIONAL_ID))
producers.append(producer)
transactions(
    lambda: wait(producer.begin_transaction()),
    lambda p, t, v: wait(producer.send_and_wait(TOPIC, v.encode(), key(v).encode(), partition=p, timestamp_ms=t)),
    lambda: wait(producer.send_offsets_to_transaction({tp: COPIED_OFFSET}, COPIED)),
    lambda: wait(producer.commit_transaction()),
    lambda: wait(producer.abort_transaction()),
)


def consume(leaving):
    consumer = wait(make(AIOKafkaConsumer, TOPIC, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False, isolation_level="read_committed", heartbeat_interval_ms=500))
    while not leaving.is_set():
        for batch in wait(consumer.getmany(timeout_ms=100)).values():
            yield from (r.value.decode() for r in batch)
        if consumer.assignment():
            try:
                wait(consumer.commit())
            except CommitFailedError:  # of a rebalance
                pass
    wait(consumer.stop())


group(sender("none"), consume)
for producer in producers:
    wait(producer.stop())
wait(admin.close())
