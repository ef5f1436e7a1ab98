// kafka-go. ../../README.md has the contract.
package main

import (
	"context"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

	"tabletopic-lab-clients/script"
)

func main() {
	bootstrap, topic, codecs := script.Args()
	ctx := context.Background()
	client := &kafka.Client{Addr: kafka.TCP(bootstrap)}
	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: topic, NumPartitions: 4, ReplicationFactor: 1}, {Topic: topic + "-gone", NumPartitions: 1, ReplicationFactor: 1},
	}})
	script.Must(err)
	for _, err := range created.Errors {
		script.Must(err)
	}
	listed := func(step string) {
		conn, err := kafka.Dial("tcp", bootstrap)
		script.Must(err)
		defer conn.Close()
		partitions, err := conn.ReadPartitions()
		script.Must(err)
		names := map[string]bool{}
		for _, p := range partitions {
			names[p.Topic] = true
		}
		script.Line(step, "topic", names[topic], "gone", names[topic+"-gone"])
	}
	listed("created")
	deleted, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic + "-gone"}})
	script.Must(err)
	for _, err := range deleted.Errors {
		script.Must(err)
	}
	listed("deleted")

	newWriter := func(acks kafka.RequiredAcks) *kafka.Writer {
		return &kafka.Writer{Addr: kafka.TCP(bootstrap), Topic: topic, RequiredAcks: acks, BatchSize: 1,
			Balancer: kafka.BalancerFunc(func(m kafka.Message, _ ...int) int {
				for _, h := range m.Headers {
					if n, err := strconv.Atoi(string(h.Value)); err == nil {
						return n
					}
				}
				return 0
			})}
	}
	send := func(w *kafka.Writer) script.Send {
		return func(partition int, at time.Time, value string) error {
			return w.WriteMessages(ctx, kafka.Message{Key: []byte(script.Key(value)), Value: []byte(value), Time: at,
				Headers: []kafka.Header{{Key: "partition", Value: strconv.AppendInt(nil, int64(partition), 10)}}})
		}
	}
	sender := func(codec string) script.Send {
		w := newWriter(kafka.RequireAll)
		if codec != "none" {
			script.Must(w.Compression.UnmarshalText([]byte(codec)))
		}
		return send(w)
	}
	for _, codec := range codecs {
		script.Values(codec, sender(codec))
	}
	for kind, acks := range map[string]kafka.RequiredAcks{"acks1": kafka.RequireOne, "acks0": kafka.RequireNone} { // it has no idempotent producer
		w := newWriter(acks)
		script.Guarantee(kind, send(w), w.Close)
	}

	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{bootstrap}, Topic: topic, Partition: 1})
	script.Must(reader.SetOffsetAt(ctx, script.Sought()))
	msg, err := reader.ReadMessage(ctx)
	script.Must(err)
	script.Line("sought", "offset", msg.Offset, "value", string(msg.Value))
	script.Must(reader.Close())

	script.Group(sender("none"), func(m *script.Member) (leave func()) {
		reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{bootstrap}, Topic: topic, GroupID: topic + "-group", IsolationLevel: kafka.ReadCommitted, StartOffset: kafka.FirstOffset,
			HeartbeatInterval: 500 * time.Millisecond, MaxWait: 200 * time.Millisecond})
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				msg, err := reader.ReadMessage(ctx) // commits
				if ctx.Err() != nil {
					return
				}
				script.Must(err)
				m.Got(string(msg.Value))
			}
		}()
		return func() {
			cancel()
			<-done
			script.Must(reader.Close())
		}
	})
}
