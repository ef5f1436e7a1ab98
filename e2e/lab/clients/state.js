// Reads the state of a compacted topic with kafkajs, as state.py does: node state.js HOST:PORT TOPIC.
const { Kafka, logLevel } = require('kafkajs');

const [bootstrap, topic] = process.argv.slice(2);
const consumer = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR }).consumer({ groupId: `${topic}-kafkajs` });

async function main() {
  await consumer.connect();
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    console.error(payload.error);
    process.exit(1);
  });
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ message }) => {
      console.log(`${message.key}\t${message.value}`); // without a value: null
      if (message.key.toString() === 'end') setImmediate(() => process.exit(0));
    },
  });
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
