// Sarama. ../../README.md has the contract.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"

	"tabletopic-lab-clients/script"
)

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.V4_0_0_0
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	return c
}

type handler struct{ m *script.Member }

func (h handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (h handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (h handler) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	for msg := range c.Messages() {
		h.m.Got(string(msg.Value))
		s.MarkMessage(msg, "")
		s.Commit()
	}
	return nil
}

func main() {
	bootstrap, topic, codecs := script.Args()
	brokers := []string{bootstrap}
	client, err := sarama.NewClient(brokers, config())
	script.Must(err)
	admin, err := sarama.NewClusterAdminFromClient(client)
	script.Must(err)
	listed := func(step string) {
		topics, err := admin.ListTopics()
		script.Must(err)
		_, is := topics[topic]
		_, gone := topics[topic+"-gone"]
		script.Line(step, "topic", is, "gone", gone)
	}
	script.Must(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: 1}, false))
	script.Must(admin.CreateTopic(topic+"-gone", &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false))
	listed("created")
	script.Must(admin.DeleteTopic(topic + "-gone"))
	listed("deleted")

	newProducer := func(codec string, more func(*sarama.Config)) sarama.SyncProducer {
		c := config()
		c.Producer.Return.Successes = true
		c.Producer.RequiredAcks = sarama.WaitForAll
		c.Producer.Partitioner = sarama.NewManualPartitioner
		script.Must(c.Producer.Compression.UnmarshalText([]byte(codec)))
		more(c)
		producer, err := sarama.NewSyncProducer(brokers, c)
		script.Must(err)
		return producer
	}
	send := func(producer sarama.SyncProducer) script.Send {
		return func(partition int, at time.Time, value string) error {
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Partition: int32(partition), Timestamp: at,
				Key: sarama.StringEncoder(script.Key(value)), Value: sarama.StringEncoder(value)})
			return err
		}
	}
	sender := func(codec string) script.Send { return send(newProducer(codec, func(*sarama.Config) {})) }
	for _, codec := range codecs {
		script.Values(codec, sender(codec))
	}

	for kind, more := range map[string]func(*sarama.Config){
		"acks1":      func(c *sarama.Config) { c.Producer.RequiredAcks = sarama.WaitForLocal },
		"acks0":      func(c *sarama.Config) { c.Producer.RequiredAcks = sarama.NoResponse },
		"idempotent": func(c *sarama.Config) { c.Producer.Idempotent, c.Net.MaxOpenRequests = true, 1 },
	} {
		producer := newProducer("none", more)
		script.Guarantee(kind, send(producer), producer.Close)
	}

	offset, err := client.GetOffset(topic, 1, script.Sought().UnixMilli())
	script.Must(err)
	consumer, err := sarama.NewConsumerFromClient(client)
	script.Must(err)
	p, err := consumer.ConsumePartition(topic, 1, offset)
	script.Must(err)
	msg := <-p.Messages()
	script.Line("sought", "offset", msg.Offset, "value", string(msg.Value))
	script.Must(p.Close())

	producer := newProducer("none", func(c *sarama.Config) {
		c.Producer.Transaction.ID = topic + "-transaction"
		c.Producer.Idempotent = true
		c.Net.MaxOpenRequests = 1
	})
	script.Transactions{Begin: producer.BeginTxn, Abort: producer.AbortTxn, Commit: producer.CommitTxn, Send: send(producer), Offsets: func() error {
		return producer.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{topic: {{Partition: 1, Offset: script.CopiedOffset}}}, topic+"-copied")
	}}.Run()
	script.Must(producer.Close())

	script.Group(sender("none"), func(m *script.Member) (leave func()) {
		group, err := sarama.NewConsumerGroup(brokers, topic+"-group", config())
		script.Must(err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				if err := group.Consume(ctx, []string{topic}, handler{m}); err != nil && !errors.Is(err, sarama.ErrClosedConsumerGroup) {
					script.Must(err)
				}
			}
		}()
		return func() {
			cancel()
			<-done
			script.Must(group.Close())
		}
	})
}
