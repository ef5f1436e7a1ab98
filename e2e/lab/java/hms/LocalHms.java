import java.net.InetSocketAddress;
import java.util.Timer;
import java.util.TimerTask;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.IHMSHandler;
import org.apache.hadoop.hive.metastore.RetryingHMSHandler;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.conf.MetastoreConf;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.metastore.txn.TxnStore;
import org.apache.hadoop.hive.metastore.txn.TxnUtils;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;
import org.apache.thrift.transport.TTransportFactory;

/**
 * Hive Metastore 3.1.3 on loopback, in-memory Derby. HiveMetaStore.main of 3.x always listens on every
 * interface. Arguments: PORT, a scratch folder, and after how many seconds a lock that nobody keeps
 * alive is gone; everything else is set here, so there is no metastore-site.xml.
 */
public class LocalHms {
  public static void main(String[] args) throws Exception {
    String scratch = args[1];
    Configuration conf = MetastoreConf.newMetastoreConf();
    conf.set("metastore.warehouse.dir", scratch + "/warehouse");
    conf.set("metastore.warehouse.external.dir", scratch + "/external");
    conf.set("javax.jdo.option.ConnectionURL", "jdbc:derby:memory:hms;create=true");
    conf.set("javax.jdo.option.ConnectionDriverName", "org.apache.derby.jdbc.EmbeddedDriver");
    conf.set("datanucleus.schema.autoCreateAll", "true");
    conf.set("metastore.schema.verification", "false");
    conf.set("metastore.try.direct.sql", "false");
    // The defaults of these two name classes of hive-exec, which is not here.
    conf.set("metastore.expression.proxy", "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy");
    conf.set("metastore.task.threads.always", "org.apache.hadoop.hive.metastore.events.EventCleanerTask");
    conf.set("metastore.txn.timeout", args[2] + "s");
    conf.set("fs.s3.impl", "ScratchS3FileSystem");
    conf.set("fs.s3a.impl", "ScratchS3FileSystem");
    conf.set("scratch.s3.root", scratch + "/s3");

    IHMSHandler handler =
        RetryingHMSHandler.getProxy(conf, new HiveMetaStore.HMSHandler("hms", conf, false), false);
    TxnDbUtil.prepDb(conf); // the lock tables, which autoCreateAll leaves out and Iceberg's commit needs

    // What the housekeeper of a whole metastore does, which is not in this jar.
    TxnStore locks = TxnUtils.getTxnStore(conf);
    new Timer(true)
        .schedule(
            new TimerTask() {
              public void run() {
                locks.performTimeOuts();
              }
            },
            500,
            500);

    TServerSocket socket =
        new TServerSocket(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])));
    System.out.println("READY thrift://127.0.0.1:" + args[0]);
    new TThreadPoolServer(
            new TThreadPoolServer.Args(socket)
                .processor(new TSetIpAddressProcessor<>(handler))
                .transportFactory(new TTransportFactory())
                .protocolFactory(new TBinaryProtocol.Factory())
                .minWorkerThreads(4)
                .maxWorkerThreads(100))
        .serve();
  }
}
