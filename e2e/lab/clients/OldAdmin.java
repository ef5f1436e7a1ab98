import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.requests.DescribeLogDirsResponse;
import org.apache.kafka.common.resource.Resource;
import org.apache.kafka.common.resource.ResourceFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The administration that the Java clients 0.11 and 1.1 have, a line for each step. Arguments: the bootstrap server,
 * a topic, the JAAS configuration, and "newer" for what came after 0.11.
 */
public class OldAdmin {
    static AdminClient admin;
    static String topic;

    public static void main(String[] args) throws Exception {
        topic = args[1];
        Properties p = new Properties();
        p.put("bootstrap.servers", args[0]);
        p.put("security.protocol", "SASL_PLAINTEXT");
        p.put("sasl.mechanism", "PLAIN"); // for SCRAM 0.11 needs a class that Java has no more
        p.put("sasl.jaas.config", args[2]);
        admin = AdminClient.create(p);
        admin.createTopics(Collections.singleton(new NewTopic(topic, 1, (short) 1))).all().get();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < 3; i++) {
                producer.send(new ProducerRecord<>(topic, 0, null, "v" + i)).get();
            }
        }
        configs();
        acls();
        if (args.length > 3) {
            Newer.run();
        }
        System.exit(0);
    }

    static void configs() throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        show(resource, "retention.ms", "max.message.bytes");
        admin.alterConfigs(Collections.singletonMap(resource, new Config(Collections.singleton(new ConfigEntry("retention.ms", "100000"))))).all().get();
        show(resource, "retention.ms");
        admin.alterConfigs(Collections.singletonMap(resource, new Config(Collections.singleton(new ConfigEntry("max.message.bytes", "2000"))))).all().get();
        show(resource, "retention.ms", "max.message.bytes"); // what is not named is as it was at first
        show(new ConfigResource(ConfigResource.Type.BROKER, "1"), "num.partitions");
    }

    static void show(ConfigResource resource, String... names) throws Exception {
        Config config = admin.describeConfigs(Collections.singleton(resource)).all().get().get(resource);
        for (String name : names) {
            ConfigEntry e = config.get(name);
            System.out.println(name + "=" + e.value() + " default=" + e.isDefault() + " readonly=" + e.isReadOnly());
        }
    }

    static void acls() throws Exception {
        List<AclBinding> all = new ArrayList<>();
        for (String name : new String[] {topic, "*"}) {
            all.add(new AclBinding(new Resource(ResourceType.TOPIC, name), new AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)));
        }
        admin.createAcls(all).all().get();
        show(admin.describeAcls(AclBindingFilter.ANY).values().get());
        AclBindingFilter own = new AclBindingFilter(new ResourceFilter(ResourceType.TOPIC, topic), AccessControlEntryFilter.ANY);
        show(admin.describeAcls(own).values().get());
        System.out.println("deleted:");
        show(admin.deleteAcls(Collections.singleton(own)).all().get());
        System.out.println("left:");
        show(admin.describeAcls(AclBindingFilter.ANY).values().get());
    }

    static void show(Collection<AclBinding> acls) {
        TreeSet<String> lines = new TreeSet<>();
        for (AclBinding a : acls) {
            lines.add(a.resource().resourceType() + " " + a.resource().name() + " " + a.entry().principal() + " " + a.entry().operation() + " " + a.entry().permissionType());
        }
        for (String line : lines) {
            System.out.println(line);
        }
    }

    /** What 0.11 does not have, in a class that it does not load. */
    static class Newer {
        static void run() throws Exception {
            admin.createPartitions(Collections.singletonMap(topic, NewPartitions.increaseTo(3))).all().get();
            System.out.println("partitions: " + admin.describeTopics(Collections.singleton(topic)).all().get().get(topic).partitions().size());
            TopicPartition first = new TopicPartition(topic, 0);
            System.out.println("low watermark: " + admin.deleteRecords(Collections.singletonMap(first, RecordsToDelete.beforeOffset(2))).lowWatermarks().get(first).get().lowWatermark());
            for (Map.Entry<String, DescribeLogDirsResponse.LogDirInfo> dir : admin.describeLogDirs(Collections.singleton(1)).all().get().get(1).entrySet()) {
                System.out.println(dir.getKey() + ": " + dir.getValue().error + ", the topic's partitions: " + dir.getValue().replicaInfos.keySet().stream().filter(p -> p.topic().equals(topic)).count());
            }
            admin.alterReplicaLogDirs(Collections.singletonMap(new TopicPartitionReplica(topic, 0, 1), "object-store")).all().get();
            System.out.println("log directory is what it was");
        }
    }
}
