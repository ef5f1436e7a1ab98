import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.apicurio.registry.content.ContentHandle;
import io.apicurio.registry.protobuf.ProtobufDifference;
import io.apicurio.registry.rules.compatibility.jsonschema.JsonSchemaDiffLibrary;
import io.apicurio.registry.rules.compatibility.protobuf.ProtobufCompatibilityCheckerLibrary;
import io.apicurio.registry.utils.protobuf.schema.ProtobufFile;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/** For each line {type, reader, writer, references} prints an array: by which of Apicurio's rules the reader may not follow the writer. */
public class ApicurioRules {
  public static void main(String[] args) throws Exception {
    var mapper = new ObjectMapper();
    var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line; (line = in.readLine()) != null; ) {
      JsonNode q = mapper.readTree(line);
      Set<String> rules = new TreeSet<>();
      try {
        String reader = q.get("reader").asText(), writer = q.get("writer").asText();
        if (q.get("type").asText().equals("PROTOBUF")) {
          protobuf(rules, writer, reader);
        } else {
          Map<String, ContentHandle> references = new HashMap<>();
          q.get("references").fields().forEachRemaining(e -> references.put(e.getKey(), ContentHandle.create(e.getValue().asText())));
          JsonSchemaDiffLibrary.getIncompatibleDifferences(writer, reader, references).forEach(d -> rules.add(d.getDiffType().name()));
        }
      } catch (RuntimeException e) {
        Throwable cause = e;
        while (cause.getCause() != null) {
          cause = cause.getCause();
        }
        rules.add("unreadable: " + cause.getMessage());
      }
      System.out.println(mapper.writeValueAsString(rules));
    }
  }

  private static void protobuf(Set<String> rules, String writer, String reader) {
    var checker = new ProtobufCompatibilityCheckerLibrary(new ProtobufFile(writer), new ProtobufFile(reader));
    Map<String, List<ProtobufDifference>> found = Map.of(
        "reserved field used", checker.checkNoUsingReservedFields(),
        "reserved field not reserved any more", checker.checkNoRemovingReservedFields(),
        "field removed and not reserved", checker.checkNoRemovingFieldsWithoutReserve(),
        "field has another number", checker.checkNoChangingFieldIDs(),
        "field has another type", checker.checkNoChangingFieldTypes(),
        "field has another name", checker.checkNoChangingFieldNames(),
        "RPC removed", checker.checkNoRemovingServiceRPCs(),
        "RPC changed", checker.checkNoChangingRPCSignature(),
        "required field added", checker.checkRequiredFields());
    found.forEach((rule, differences) -> {
      if (!differences.isEmpty()) {
        rules.add(rule);
      }
    });
    if (checker.validate() != rules.isEmpty()) {
      throw new IllegalStateException("validate says " + checker.validate() + ", the rules " + rules);
    }
  }
}
