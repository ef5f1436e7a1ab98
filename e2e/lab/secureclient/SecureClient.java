import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Produces and consumes ten records over SASL_SSL: SecureClient BOOTSTRAP CA MECHANISM USER PASSWORD TOPIC. */
class SecureClient {
    public static void main(String[] args) throws Exception {
        String mechanism = args[2];
        Properties p = new Properties();
        p.put("bootstrap.servers", args[0]);
        p.put("security.protocol", "SASL_SSL");
        p.put("ssl.truststore.type", "PEM");
        p.put("ssl.truststore.location", args[1]);
        p.put("sasl.mechanism", mechanism);
        String module = mechanism.equals("PLAIN") ? "plain.Plain" : "scram.Scram";
        p.put("sasl.jaas.config", "org.apache.kafka.common.security." + module + "LoginModule required username=\"" + args[3] + "\" password=\"" + args[4] + "\";");
        p.put("group.id", "java " + mechanism);
        p.put("auto.offset.reset", "earliest");
        Set<String> left = new HashSet<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < 10; i++) {
                String value = "java " + mechanism + " " + i;
                left.add(value);
                producer.send(new ProducerRecord<>(args[5], value)).get();
            }
        }
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[5]));
            for (long end = System.nanoTime() + Duration.ofSeconds(60).toNanos(); !left.isEmpty();) {
                if (System.nanoTime() > end) {
                    throw new IllegalStateException("left " + left);
                }
                for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofSeconds(1))) {
                    left.remove(r.value());
                }
            }
        }
        System.out.println("ok " + mechanism);
    }
}
