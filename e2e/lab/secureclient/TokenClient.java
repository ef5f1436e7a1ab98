import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.errors.SaslAuthenticationException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Produces by SASL_PLAINTEXT with the token in a file, which is read again before the token expires, until
 * its connection was authenticated again as often as it is told; or prints why it may not log in.
 *
 * <p>TokenClient BOOTSTRAP TOKEN_FILE TOPIC TIMES
 */
class TokenClient {
    public static void main(String[] args) throws Exception {
        String file = Path.of(args[1]).toUri().toString();
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", file);
        Properties p = new Properties();
        p.put("bootstrap.servers", args[0]);
        p.put("security.protocol", "SASL_PLAINTEXT");
        p.put("sasl.mechanism", "OAUTHBEARER");
        p.put("sasl.login.callback.handler.class", "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler");
        p.put("sasl.oauthbearer.token.endpoint.url", file);
        p.put("sasl.oauthbearer.jwt.validator.class", "org.apache.kafka.common.security.oauthbearer.ClientJwtValidator"); // the other needs a library
        p.put("sasl.jaas.config", "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;");
        p.put("sasl.login.refresh.min.period.seconds", "1");
        p.put("sasl.login.refresh.buffer.seconds", "1");
        p.put("sasl.login.refresh.window.factor", "0.5");
        int times = Integer.parseInt(args[3]);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
            int sent = 0;
            do {
                producer.send(new ProducerRecord<>(args[2], "java " + sent++)).get();
            } while (again(producer) < times);
            System.out.println("ok");
        } catch (ExecutionException e) {
            if (!(e.getCause() instanceof SaslAuthenticationException)) {
                throw e;
            }
            System.out.println("refused: " + e.getCause().getMessage());
        }
    }

    /** How often a connection was authenticated again. */
    static double again(KafkaProducer<String, String> producer) {
        for (Metric m : producer.metrics().values()) {
            if (m.metricName().name().equals("successful-reauthentication-total") && m.metricName().group().equals("producer-metrics")) {
                return (Double) m.metricValue();
            }
        }
        throw new IllegalStateException("there is no metric of authentications");
    }
}
