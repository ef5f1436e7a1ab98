// kafkajs with its registry client: registers a schema of each type, sends records that it encodes, and reads
// them as others do. Usage: kafkajs.js HOST:PORT REGISTRY TOPIC. Prints the values that it read, a line of JSON each.
const assert = require('node:assert');
const { Kafka, logLevel } = require('kafkajs');
const { SchemaRegistry, SchemaType, COMPATIBILITY } = require('@kafkajs/confluent-schema-registry');

const [bootstrap, host, topic] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR });

async function main() {
  const registry = new SchemaRegistry({ host });
  const avro = await registry.register(
    { type: SchemaType.AVRO, schema: JSON.stringify({ type: 'record', name: 'Click', fields: [{ name: 'id', type: 'int' }, { name: 'page', type: 'string' }] }) },
    { subject: `${topic}-value`, compatibility: COMPATIBILITY.FULL });
  const json = await registry.register(
    { type: SchemaType.JSON, schema: JSON.stringify({ type: 'object', properties: { id: { type: 'integer' } }, required: ['id'] }) }, { subject: `${topic}-json` });
  const base = 'syntax = "proto3"; package shop; message Page { string path = 1; }';
  await registry.register({ type: SchemaType.PROTOBUF, schema: base }, { subject: 'page.proto' });
  const proto = await registry.register(
    { type: SchemaType.PROTOBUF, schema: 'syntax = "proto3"; package shop; import "page.proto"; message Visit { int32 id = 1; Page page = 2; }',
      references: [{ name: 'page.proto', subject: 'page.proto', version: 1 }] },
    { subject: `${topic}-proto` });
  assert.equal(await registry.getLatestSchemaId(`${topic}-value`), avro.id);
  assert.equal(await registry.getRegistryId(`${topic}-json`, 1), json.id);
  await assert.rejects(registry.encode(json.id, { id: 'x' }));
  await assert.rejects(registry.register({ type: SchemaType.AVRO, schema: '{"type":"record","name":"Click","fields":[{"name":"id","type":"string"}]}' },
    { subject: `${topic}-value`, compatibility: COMPATIBILITY.FULL }), (e) => e.status === 409);
  await assert.rejects(registry.getLatestSchemaId('nothing'), (e) => e.status === 404);

  const other = new SchemaRegistry({ host }); // knows nothing yet
  const payload = await registry.encode(proto.id, { id: 7, page: { path: '/a' } });
  assert.deepEqual(JSON.parse(JSON.stringify(await other.decode(payload))), { id: 7, page: { path: '/a' } });
  assert.deepEqual(await other.decode(await registry.encode(json.id, { id: 8 })), { id: 8 });

  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, messages: await Promise.all([1, 2, 3].map(async (id) => ({ value: await registry.encode(avro.id, { id, page: `/${id}` }) }))) });
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: `${topic}-kafkajs` });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((done, fail) => {
    let left = 3;
    consumer.run({
      eachMessage: async ({ message }) => {
        console.log(JSON.stringify(await other.decode(message.value)));
        if (--left === 0) done();
      },
    }).catch(fail);
  });
  await consumer.disconnect();
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
