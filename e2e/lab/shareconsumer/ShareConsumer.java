import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Takes numbers from a topic in a share group, and acknowledges each: those that end in 7 it rejects,
 * those that end in 3 it releases when they come for the first time, the others it accepts. It prints
 * "got VALUE DELIVERIES" for each record, and "accept VALUE", "release VALUE" or "reject VALUE" once the
 * server has confirmed it, or the same behind "unsure" if it has not, from "ready" until it is told to end: then it closes and prints "left".
 *
 * <p>ShareConsumer HOST:PORT GROUP TOPIC
 */
public class ShareConsumer {
    public static void main(String[] args) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", args[0]);
        p.put("group.id", args[1]);
        p.put("share.acknowledgement.mode", "explicit");
        p.put("max.poll.records", "20");
        KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(p, new StringDeserializer(), new StringDeserializer());
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        System.out.println("ready");
        consumer.subscribe(List.of(args[2]));
        try {
            while (true) {
                List<String> done = new ArrayList<>();
                for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofMillis(500))) {
                    AcknowledgeType type = AcknowledgeType.ACCEPT;
                    if (r.value().endsWith("7")) {
                        type = AcknowledgeType.REJECT;
                    } else if (r.value().endsWith("3") && r.deliveryCount().get() == 1) {
                        type = AcknowledgeType.RELEASE;
                    }
                    System.out.println("got " + r.value() + " " + r.deliveryCount().get());
                    consumer.acknowledge(r, type);
                    done.add(type + " " + r.value());
                }
                // Of what fails, all that was acknowledged together may be done or not.
                if (consumer.commitSync().values().stream().allMatch(e -> e.isEmpty())) {
                    done.forEach(System.out::println);
                } else {
                    done.forEach(d -> System.out.println("unsure " + d));
                }
                System.out.flush();
            }
        } catch (WakeupException e) {
            consumer.close();
            System.out.println("left");
        }
    }
}
