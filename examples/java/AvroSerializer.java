import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Serializer;

/**
 * Serializes Avro records in the registry's wire format: a zero byte, the schema id, the Avro binary. Confluent's
 * KafkaAvroSerializer does the same and works as well; this one needs nothing but Maven Central.
 */
public class AvroSerializer implements Serializer<GenericRecord> {
  private static final ObjectMapper JSON = new ObjectMapper();
  private final HttpClient http = HttpClient.newHttpClient();
  private final Map<Schema, Integer> ids = new ConcurrentHashMap<>();
  private String registry;

  @Override
  public void configure(Map<String, ?> configs, boolean isKey) {
    registry = (String) configs.get("schema.registry.url");
  }

  @Override
  public byte[] serialize(String topic, GenericRecord record) {
    if (record == null) {
      return null;
    }
    int id = ids.computeIfAbsent(record.getSchema(), schema -> register(topic + "-value", schema));
    ByteArrayOutputStream out = new ByteArrayOutputStream(256);
    try {
      DataOutputStream header = new DataOutputStream(out);
      header.writeByte(0);
      header.writeInt(id);
      BinaryEncoder encoder = EncoderFactory.get().directBinaryEncoder(out, null);
      new GenericDatumWriter<GenericRecord>(record.getSchema()).write(record, encoder);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    return out.toByteArray();
  }

  private int register(String subject, Schema schema) {
    try {
      String body = JSON.createObjectNode().put("schema", schema.toString()).toString();
      HttpRequest request =
          HttpRequest.newBuilder(URI.create(registry + "/subjects/" + subject + "/versions"))
              .header("Content-Type", "application/vnd.schemaregistry.v1+json")
              .POST(HttpRequest.BodyPublishers.ofString(body))
              .build();
      HttpResponse<String> response = http.send(request, HttpResponse.BodyHandlers.ofString());
      JsonNode answer = JSON.readTree(response.body());
      if (response.statusCode() != 200) {
        throw new SerializationException("register " + subject + ": " + answer.path("message").asText());
      }
      return answer.get("id").asInt();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new SerializationException(e);
    }
  }
}
