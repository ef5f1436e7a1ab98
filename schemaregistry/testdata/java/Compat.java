import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.TreeSet;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/** For each pair of lines, reader and writer, prints what Apache Avro says of them. */
public class Compat {
  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String reader; (reader = in.readLine()) != null; ) {
      String writer = in.readLine();
      String answer;
      try {
        var result = SchemaCompatibility.checkReaderWriterCompatibility(
            new Schema.Parser().parse(reader), new Schema.Parser().parse(writer)).getResult();
        var kinds = new TreeSet<String>();
        result.getIncompatibilities().forEach(i -> kinds.add(i.getType() + " " + i.getLocation()));
        answer = String.join(",", kinds) + "\t" + new Schema.Parser().parse(reader);
      } catch (org.apache.avro.AvroRuntimeException e) {
        answer = "error " + e.getMessage().replaceAll("\\s+", " ") + "\t";
      }
      System.out.println(answer);
    }
  }
}
