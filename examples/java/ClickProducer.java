import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A clickstream producer with the Java client, idempotent and acks=all as it is by default.
 *
 * <pre>
 * mvn -f examples/java compile exec:java -Dexec.mainClass=ClickProducer -Dexec.args="--topic clicks --count 100000"
 * </pre>
 */
public class ClickProducer {
  private static final String[] ACTIONS = {"VIEW", "CLICK", "CART", "BUY"};
  private static final String[] COUNTRIES = {"DE", "FR", "JP", "BR", "US"};

  public static void main(String[] args) throws Exception {
    Map<String, String> options = new HashMap<>(Map.of(
        "--bootstrap", "127.0.0.1:9092", "--registry", "http://127.0.0.1:8081", "--topic", "clicks",
        "--schema", "examples/click.avsc", "--count", "1000", "--first", "0"));
    for (int i = 0; i + 1 < args.length; i += 2) {
      if (options.put(args[i], args[i + 1]) == null) {
        System.err.println("unknown option " + args[i]);
        System.exit(2);
      }
    }
    long first = Long.parseLong(options.get("--first"));
    long count = Long.parseLong(options.get("--count"));
    String topic = options.get("--topic");
    Schema schema = new Schema.Parser().parse(Files.readString(Path.of(options.get("--schema"))));

    AtomicLong acked = new AtomicLong();
    AtomicLong sumDwell = new AtomicLong();
    AtomicLong sumId = new AtomicLong();
    Map<String, Object> config = Map.of(
        "bootstrap.servers", options.get("--bootstrap"),
        "schema.registry.url", options.get("--registry"),
        "key.serializer", StringSerializer.class,
        "value.serializer", AvroSerializer.class);
    try (KafkaProducer<String, GenericRecord> producer = new KafkaProducer<>(config)) {
      for (long i = first; i < first + count; i++) {
        GenericRecord click = clickAt(schema, i);
        long id = i;
        int dwell = (int) click.get("dwell_ms");
        producer.send(new ProducerRecord<>(topic, (String) click.get("user"), click), (metadata, error) -> {
          if (error != null) {
            System.err.println("record " + id + ": " + error);
            Runtime.getRuntime().halt(1);
          }
          acked.incrementAndGet();
          sumDwell.addAndGet(dwell);
          sumId.addAndGet(id);
        });
      }
      producer.flush();
    }
    System.out.printf("{\"acked\": %d, \"sum_dwell_ms\": %d, \"sum_event_id\": %d}%n", acked.get(), sumDwell.get(), sumId.get());
  }

  /** The same for the same i in each of the examples' languages. */
  static GenericRecord clickAt(Schema schema, long i) {
    String action = ACTIONS[(int) (i % 4)];
    GenericRecord geo = new GenericData.Record(schema.getField("geo").schema());
    geo.put("country", COUNTRIES[(int) (i % 5)]);
    geo.put("city", i % 7 == 0 ? null : "city-" + i % 97);
    GenericRecord click = new GenericData.Record(schema);
    click.put("event_id", i);
    click.put("user", "user-" + i * 7919 % 10007);
    click.put("page", "/page/" + i % 500);
    click.put("action", new GenericData.EnumSymbol(schema.getField("action").schema(), action));
    click.put("referrer", i % 3 == 0 ? null : "https://example.com/" + i % 50);
    click.put("at", 1767225600000L + i * 37);
    click.put("dwell_ms", (int) (i * 31 % 60000));
    click.put("amount", action.equals("BUY") ? i % 1000 / 4.0 : null);
    click.put("geo", geo);
    click.put("tags", Map.of("variant", i % 2 == 0 ? "a" : "b", "build", Long.toString(i % 10)));
    return click;
  }
}
