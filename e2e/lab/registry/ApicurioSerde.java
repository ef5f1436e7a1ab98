import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.generic.GenericRecordBuilder;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apicurio's Avro serializers in the mode of Confluent's framing. Usage: ApicurioSerde HOST:PORT REGISTRY TOPIC. Sends three
 * records, each with another way to find the schema, and prints what it reads of the topic until it has read those.
 */
public class ApicurioSerde {
  public static void main(String[] args) throws Exception {
    String bootstrap = args[0], topic = args[2];
    Map<String, Object> config = Map.of(
        "bootstrap.servers", bootstrap,
        "apicurio.registry.url", args[1] + "/apis/registry/v2",
        "apicurio.registry.as-confluent", true,
        "apicurio.registry.headers.enabled", false);
    Schema schema = new Schema.Parser().parse(
        "{\"type\":\"record\",\"name\":\"Click\",\"fields\":[{\"name\":\"id\",\"type\":\"int\"},{\"name\":\"page\",\"type\":\"string\"}]}");
    int id = 11;
    for (String find : List.of("apicurio.registry.auto-register", "apicurio.registry.find-latest", "by content")) {
      Map<String, Object> producing = new HashMap<>(config);
      producing.put(find, true);
      producing.put("apicurio.registry.use-id", id % 2 == 0 ? "globalId" : "contentId");
      try (var serializer = new AvroKafkaSerializer<GenericRecord>(); var producer = new KafkaProducer<>(producing, new ByteArraySerializer(), serializer)) {
        serializer.configure(producing, false);
        producer.send(new ProducerRecord<>(topic, new GenericRecordBuilder(schema).set("id", id).set("page", "/" + id).build())).get();
      }
      id++;
    }
    Map<String, Object> consuming = new HashMap<>(config);
    consuming.put("group.id", topic + "-apicurio");
    consuming.put("auto.offset.reset", "earliest");
    try (var deserializer = new AvroKafkaDeserializer<GenericRecord>(); var consumer = new KafkaConsumer<>(consuming, new ByteArrayDeserializer(), deserializer)) {
      deserializer.configure(consuming, false);
      consumer.subscribe(List.of(topic));
      for (int left = 3; left > 0; ) {
        for (var record : consumer.poll(Duration.ofSeconds(1))) {
          System.out.println(record.value());
          left -= (int) record.value().get("id") > 10 ? 1 : 0;
        }
      }
    }
  }
}
