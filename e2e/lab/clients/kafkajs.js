// kafkajs. README.md has the contract.
const { Kafka, CompressionCodecs, CompressionTypes, logLevel } = require('kafkajs');
const lz4 = require('lz4js');
const snappy = require('kafkajs-snappy');
const { ZstdCodec } = require('zstd-codec');

const [bootstrap, topic, codecs, start] = process.argv.slice(2);
const begin = Number(start);
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR });
const line = (step, fields = {}) => console.log(JSON.stringify({ step, ...fields }));
const later = (ms) => new Promise((done) => setTimeout(done, ms));

class Member {
  constructor(name) {
    this.name = name;
    this.seen = new Set();
    this.consumer = kafka.consumer({ groupId: `${topic}-group`, heartbeatInterval: 500, rebalanceTimeout: 10000 });
  }
  async start() {
    await this.consumer.connect();
    await this.consumer.subscribe({ topic, fromBeginning: true });
    await this.consumer.run({
      eachMessage: async ({ message }) => {
        const value = message.value.toString();
        line('got', { member: this.name, value });
        this.seen.add(value);
      },
    });
  }
  async leave() {
    await this.consumer.disconnect(); // commits before
  }
}

// The library has gzip alone, and takes other codecs from whoever has them.
async function addCodecs() {
  const codec = (compress, decompress) => () => ({ compress: async (encoder) => compress(encoder.buffer), decompress: async (buffer) => decompress(buffer) });
  const zstd = new (await new Promise((done) => ZstdCodec.run(done))).Simple();
  CompressionCodecs[CompressionTypes.Snappy] = snappy;
  CompressionCodecs[CompressionTypes.LZ4] = codec((b) => Buffer.from(lz4.compress(b)), (b) => Buffer.from(lz4.decompress(b)));
  CompressionCodecs[CompressionTypes.ZSTD] = codec((b) => Buffer.from(zstd.compress(b)), (b) => Buffer.from(zstd.decompress(b)));
}

async function main() {
  await addCodecs();
  const admin = kafka.admin();
  await admin.connect();
  const listed = async (step) => {
    const names = await admin.listTopics();
    line(step, { topic: names.includes(topic), gone: names.includes(`${topic}-gone`) });
  };
  await admin.createTopics({ topics: [{ topic, numPartitions: 4 }, { topic: `${topic}-gone`, numPartitions: 1 }] });
  await listed('created');
  await admin.deleteTopics({ topics: [`${topic}-gone`] });
  await listed('deleted');

  const producer = kafka.producer();
  await producer.connect();
  const send = async (partition, timestamp, value, compression) => {
    await producer.send({ topic, acks: -1, compression, messages: [{ key: value.repeat(50), value, partition, timestamp: String(timestamp) }] });
    line('sent', { value });
  };
  const names = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy, lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD };
  for (const codec of codecs.split(',')) {
    for (let i = 0; i < 12; i++) await send(i % 4, begin + i * 1000, `${codec}-${i}`, names[codec]);
  }

  for (const kind of ['acks1', 'acks0', 'idempotent']) {
    const acks = { acks1: 1, acks0: 0, idempotent: -1 }[kind];
    const values = [0, 1, 2, 3].map((i) => `${kind}-${i}`);
    const other = kafka.producer({ idempotent: kind === 'idempotent' });
    await other.connect();
    for (const [partition, value] of values.entries()) {
      await other.send({ topic, acks, messages: [{ key: value.repeat(50), value, partition, timestamp: String(begin + 20000) }] });
    }
    await other.disconnect();
    for (const value of values) line('sent', { value });
  }

  const found = (await admin.fetchTopicOffsetsByTimestamp(topic, begin + 4500)).find((p) => p.partition === 1);
  const seeker = kafka.consumer({ groupId: `${topic}-seek` });
  await seeker.connect();
  await seeker.subscribe({ topic });
  const sought = new Promise((done) => {
    seeker.run({ eachMessage: async ({ partition, message }) => partition === 1 && Number(message.offset) >= Number(found.offset) && done(message) });
    seeker.seek({ topic, partition: 1, offset: found.offset });
  });
  const message = await sought;
  line('sought', { offset: Number(message.offset), value: message.value.toString() });
  await seeker.disconnect();

  const transactional = kafka.producer({ transactionalId: `${topic}-transaction`, idempotent: true, maxInFlightRequests: 1 });
  await transactional.connect();
  const fill = async (name) => {
    const transaction = await transactional.transaction();
    const messages = [0, 1, 2, 3].map((partition) => ({ partition, value: `${name}-${partition}`, key: `${name}-${partition}`.repeat(50), timestamp: String(begin) }));
    await transaction.send({ topic, acks: -1, messages });
    return transaction;
  };
  await (await fill('aborted')).abort();
  const transaction = await fill('committed');
  await transaction.sendOffsets({ consumerGroupId: `${topic}-copied`, topics: [{ topic, partitions: [{ partition: 1, offset: '7' }] }] });
  await transaction.commit();
  for (const i of [0, 1, 2, 3]) line('sent', { value: `committed-${i}` });
  line('transactions');
  await transactional.disconnect();

  const rounds = async (name, ...members) => {
    for (let n = 0; ; n++) {
      const values = [0, 1, 2, 3].map((i) => `${name}${n}-${i}`);
      for (let i = 0; i < 4; i++) await send(i, begin + 100000, values[i]);
      while (!values.every((v) => members.some((m) => m.seen.has(v)))) await later(50);
      if (members.every((m) => values.some((v) => m.seen.has(v)))) return;
    }
  };
  const a = new Member('a');
  await a.start();
  await rounds('one', a);
  const b = new Member('b');
  await b.start();
  await rounds('both', a, b);
  await b.leave();
  line('left');
  await rounds('rest', a);
  await a.leave();
  await producer.disconnect();
  await admin.disconnect();
  line('done');
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
