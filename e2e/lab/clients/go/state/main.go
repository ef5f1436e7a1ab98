// Reads the state of a compacted topic with a client that is named: state sarama|kafka-go HOST:PORT TOPIC.
// It prints key and value of each committed record of partition 0, with a tab between, up to the
// record with the key "end".
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"

	"tabletopic-lab-clients/script"
)

func main() {
	client, bootstrap, topic := os.Args[1], os.Args[2], os.Args[3]
	next := ofKafkaGo(bootstrap, topic)
	if client == "sarama" {
		next = ofSarama(bootstrap, topic)
	}
	for {
		key, value := next()
		if value == nil {
			value = []byte("null")
		}
		fmt.Printf("%s\t%s\n", key, value)
		if string(key) == "end" {
			return
		}
	}
}

func ofSarama(bootstrap, topic string) func() (key, value []byte) {
	c := sarama.NewConfig()
	c.Version = sarama.V4_0_0_0
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	consumer, err := sarama.NewConsumer([]string{bootstrap}, c)
	script.Must(err)
	p, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	script.Must(err)
	return func() (key, value []byte) {
		m := <-p.Messages()
		return m.Key, m.Value
	}
}

func ofKafkaGo(bootstrap, topic string) func() (key, value []byte) {
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{bootstrap}, Topic: topic, IsolationLevel: kafka.ReadCommitted})
	return func() (key, value []byte) {
		m, err := r.ReadMessage(context.Background())
		script.Must(err)
		return m.Key, m.Value
	}
}
