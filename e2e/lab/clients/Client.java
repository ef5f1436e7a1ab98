import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The Java client, of any version from 0.11 on. README.md has the contract. */
public class Client {
    static String bootstrap, topic;
    static long begin;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        topic = args[1];
        String[] codecs = args[2].split(",");
        begin = Long.parseLong(args[3]);
        Properties p = properties();
        try (AdminClient admin = AdminClient.create(p)) {
            admin.createTopics(Arrays.asList(new NewTopic(topic, 4, (short) 1), new NewTopic(topic + "-gone", 1, (short) 1))).all().get();
            say("created", admin);
            admin.deleteTopics(Collections.singleton(topic + "-gone")).all().get();
            say("deleted", admin);
        }
        for (String codec : codecs) {
            try (KafkaProducer<String, String> producer = producer(codec)) {
                for (int i = 0; i < 12; i++) {
                    send(producer, i % 4, begin + i * 1000, codec + "-" + i);
                }
            }
        }
        for (String kind : new String[] {"acks1", "acks0", "idempotent"}) {
            guarantee(kind);
        }
        seek();
        transactions();
        group();
        // Threads of the old clients' metrics may linger.
        System.exit(0);
    }

    static Properties properties() {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        return p;
    }

    static void say(String step, AdminClient admin) throws Exception {
        Set<String> names = admin.listTopics().names().get();
        line("step", step, "topic", names.contains(topic), "gone", names.contains(topic + "-gone"));
    }

    static synchronized void line(Object... fields) {
        StringBuilder b = new StringBuilder("{");
        for (int i = 0; i < fields.length; i += 2) {
            b.append(i > 0 ? "," : "").append('"').append(fields[i]).append("\":");
            b.append(fields[i + 1] instanceof String ? "\"" + fields[i + 1] + "\"" : fields[i + 1]);
        }
        System.out.println(b.append('}'));
    }

    static void guarantee(String kind) throws Exception {
        Properties p = properties();
        p.put("acks", kind.equals("acks1") ? "1" : kind.equals("acks0") ? "0" : "all");
        p.put("enable.idempotence", kind.equals("idempotent"));
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < 4; i++) {
                String value = kind + "-" + i;
                producer.send(new ProducerRecord<>(topic, i, begin + 20000, key(value), value)).get();
            }
        }
        for (int i = 0; i < 4; i++) {
            line("step", "sent", "value", kind + "-" + i);
        }
    }

    static KafkaProducer<String, String> producer(String codec) {
        Properties p = properties();
        p.put("compression.type", codec);
        p.put("acks", "all");
        return new KafkaProducer<>(p, new StringSerializer(), new StringSerializer());
    }

    static void send(KafkaProducer<String, String> producer, int partition, long timestamp, String value) throws Exception {
        producer.send(new ProducerRecord<>(topic, partition, timestamp, key(value), value)).get();
        line("step", "sent", "value", value);
    }

    static String key(String value) {
        return String.join("", Collections.nCopies(50, value));
    }

    static KafkaConsumer<String, String> consumer(String group) {
        Properties p = properties();
        p.put("group.id", group);
        p.put("auto.offset.reset", "earliest");
        p.put("session.timeout.ms", "10000");
        p.put("heartbeat.interval.ms", "500");
        p.put("enable.auto.commit", "false");
        p.put("isolation.level", "read_committed");
        return new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer());
    }

    /** poll takes a duration from 2.0 on, and nothing else from 4.0 on. */
    @SuppressWarnings("unchecked")
    static ConsumerRecords<String, String> poll(KafkaConsumer<String, String> consumer) throws Exception {
        Method m;
        try {
            m = KafkaConsumer.class.getMethod("poll", Duration.class);
        } catch (NoSuchMethodException e) {
            m = KafkaConsumer.class.getMethod("poll", long.class);
            return (ConsumerRecords<String, String>) m.invoke(consumer, 100L);
        }
        return (ConsumerRecords<String, String>) m.invoke(consumer, Duration.ofMillis(100));
    }

    static void seek() throws Exception {
        try (KafkaConsumer<String, String> consumer = consumer(topic + "-seek")) {
            TopicPartition tp = new TopicPartition(topic, 1);
            consumer.assign(Collections.singletonList(tp));
            Map<TopicPartition, OffsetAndTimestamp> found = consumer.offsetsForTimes(Collections.singletonMap(tp, begin + 4500));
            consumer.seek(tp, found.get(tp).offset());
            while (true) {
                for (ConsumerRecord<String, String> r : poll(consumer)) {
                    line("step", "sought", "offset", r.offset(), "value", r.value());
                    return;
                }
            }
        }
    }

    static void transactions() throws Exception {
        Properties p = properties();
        p.put("transactional.id", topic + "-transaction");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int i = 0; i < 4; i++) {
                String value = "aborted-" + i;
                producer.send(new ProducerRecord<>(topic, i, begin, key(value), value));
            }
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            for (int i = 0; i < 4; i++) {
                String value = "committed-" + i;
                producer.send(new ProducerRecord<>(topic, i, begin, key(value), value));
            }
            sendOffsets(producer, Collections.singletonMap(new TopicPartition(topic, 1), new OffsetAndMetadata(7)));
            producer.commitTransaction();
        }
        for (int i = 0; i < 4; i++) {
            line("step", "sent", "value", "committed-" + i);
        }
        line("step", "transactions");
    }

    /** sendOffsets names the group by its metadata from 2.5 on, and not by its id from 4.0 on. */
    static void sendOffsets(KafkaProducer<String, String> producer, Map<TopicPartition, OffsetAndMetadata> offsets) throws Exception {
        Class<?> metadata;
        try {
            metadata = Class.forName("org.apache.kafka.clients.consumer.ConsumerGroupMetadata");
        } catch (ClassNotFoundException e) {
            KafkaProducer.class.getMethod("sendOffsetsToTransaction", Map.class, String.class).invoke(producer, offsets, topic + "-copied");
            return;
        }
        try (KafkaConsumer<String, String> consumer = consumer(topic + "-copied")) {
            Object group = KafkaConsumer.class.getMethod("groupMetadata").invoke(consumer);
            KafkaProducer.class.getMethod("sendOffsetsToTransaction", Map.class, metadata).invoke(producer, offsets, group);
        }
    }

    static class Member extends Thread {
        final String name;
        final Set<String> seen = ConcurrentHashMap.newKeySet();
        volatile boolean leaving;

        Member(String name) {
            this.name = name;
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            try (KafkaConsumer<String, String> consumer = consumer(topic + "-group")) {
                consumer.subscribe(Collections.singletonList(topic));
                while (!leaving) {
                    for (ConsumerRecord<String, String> r : poll(consumer)) {
                        line("step", "got", "member", name, "value", r.value());
                        seen.add(r.value());
                    }
                    consumer.commitSync();
                }
            } catch (Exception e) {
                e.printStackTrace();
            }
        }
    }

    /** Sends rounds, a value to each partition, until all members got something of one. */
    static void rounds(KafkaProducer<String, String> producer, String name, Member... members) throws Exception {
        for (int n = 0; ; n++) {
            List<String> values = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                values.add(name + n + "-" + i);
                send(producer, i, begin + 100000, values.get(i));
            }
            Set<String> seen = new HashSet<>();
            while (!seen.containsAll(values)) {
                Thread.sleep(50);
                for (Member m : members) {
                    seen.addAll(m.seen);
                }
            }
            boolean all = true;
            for (Member m : members) {
                all &= !Collections.disjoint(m.seen, values);
            }
            if (all) {
                return;
            }
        }
    }

    static void group() throws Exception {
        try (KafkaProducer<String, String> producer = producer("none")) {
            Member a = new Member("a");
            rounds(producer, "one", a);
            Member b = new Member("b");
            rounds(producer, "both", a, b);
            b.leaving = true;
            b.join();
            line("step", "left");
            rounds(producer, "rest", a);
            a.leaving = true;
            a.join();
        }
        line("step", "done");
    }
}
