import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Consumes a topic in a group of the consumer protocol, or of the classic one with an assignor, and prints "partition offset value" for
 * each record, until it is told to end: then it leaves and prints "left". It commits after each poll, and
 * prints "# commit refused" where it may not, because the group rebalances.
 *
 * <p>GroupConsumer HOST:PORT GROUP TOPIC [ASSIGNOR]
 */
public class GroupConsumer {
    public static void main(String[] args) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", args[0]);
        p.put("group.id", args[1]);
        if (args.length > 3) {
            p.put("group.protocol", "classic");
            p.put("partition.assignment.strategy", args[3]);
            p.put("heartbeat.interval.ms", "500");
        } else {
            p.put("group.protocol", "consumer");
        }
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false");
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer());
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        consumer.subscribe(List.of(args[2]));
        try {
            while (true) {
                consumer.poll(Duration.ofMillis(100)).forEach(r -> System.out.println(r.partition() + " " + r.offset() + " " + r.value()));
                try {
                    consumer.commitSync();
                } catch (RebalanceInProgressException | CommitFailedException e) {
                    System.out.println("# commit refused: " + e);
                }
                System.out.flush();
            }
        } catch (WakeupException e) {
            consumer.close();
            System.out.println("left");
        }
    }
}
