// Command go is a clickstream producer with franz-go and its registry client.
//
//	go run ./examples/go --topic clicks --count 100000
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

type click struct {
	EventID  int64             `avro:"event_id"`
	User     string            `avro:"user"`
	Page     string            `avro:"page"`
	Action   string            `avro:"action"`
	Referrer *string           `avro:"referrer"`
	At       time.Time         `avro:"at"`
	DwellMS  int32             `avro:"dwell_ms"`
	Amount   *float64          `avro:"amount"`
	Geo      geo               `avro:"geo"`
	Tags     map[string]string `avro:"tags"`
}

type geo struct {
	Country string  `avro:"country"`
	City    *string `avro:"city"`
}

var (
	actions   = []string{"VIEW", "CLICK", "CART", "BUY"}
	countries = []string{"DE", "FR", "JP", "BR", "US"}
)

// clickAt is the same for the same i in each of the examples' languages.
func clickAt(i int64) click {
	c := click{
		EventID: i,
		User:    "user-" + strconv.FormatInt(i*7919%10007, 10),
		Page:    "/page/" + strconv.FormatInt(i%500, 10),
		Action:  actions[i%4],
		At:      time.UnixMilli(1767225600000 + i*37),
		DwellMS: int32(i * 31 % 60000),
		Geo:     geo{Country: countries[i%5]},
		Tags:    map[string]string{"variant": string(rune('a' + i%2)), "build": strconv.FormatInt(i%10, 10)},
	}
	if i%3 != 0 {
		s := "https://example.com/" + strconv.FormatInt(i%50, 10)
		c.Referrer = &s
	}
	if c.Action == "BUY" {
		a := float64(i%1000) / 4
		c.Amount = &a
	}
	if i%7 != 0 {
		s := "city-" + strconv.FormatInt(i%97, 10)
		c.Geo.City = &s
	}
	return c
}

func main() {
	bootstrap := flag.String("bootstrap", "127.0.0.1:9092", "Kafka HOST:PORT")
	registry := flag.String("registry", "http://127.0.0.1:8081", "schema registry URL")
	topic := flag.String("topic", "clicks", "topic to produce to")
	schemaFile := flag.String("schema", "examples/click.avsc", "Avro schema file")
	count := flag.Int64("count", 1000, "records to produce")
	first := flag.Int64("first", 0, "event_id of the first record")
	flag.Parse()
	ctx := context.Background()

	text, err := os.ReadFile(*schemaFile)
	if err != nil {
		log.Fatal(err)
	}
	reg, err := sr.NewClient(sr.URLs(*registry))
	if err != nil {
		log.Fatal(err)
	}
	registered, err := reg.CreateSchema(ctx, *topic+"-value", sr.Schema{Schema: string(text)})
	if err != nil {
		log.Fatal(err)
	}
	schema := avro.MustParse(string(text))
	serde := sr.NewSerde()
	serde.Register(registered.ID, click{}, sr.EncodeFn(func(v any) ([]byte, error) { return avro.Marshal(schema, v) }))

	cl, err := kgo.NewClient(kgo.SeedBrokers(*bootstrap), kgo.DefaultProduceTopic(*topic))
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close()
	var acked, sumDwell, sumID atomic.Int64
	for i := *first; i < *first+*count; i++ {
		c := clickAt(i)
		value, err := serde.Encode(c)
		if err != nil {
			log.Fatal(err)
		}
		cl.Produce(ctx, &kgo.Record{Key: []byte(c.User), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				log.Fatal(err)
			}
			acked.Add(1)
			sumDwell.Add(int64(c.DwellMS))
			sumID.Add(c.EventID)
		})
	}
	if err := cl.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	out, _ := json.Marshal(map[string]int64{"acked": acked.Load(), "sum_dwell_ms": sumDwell.Load(), "sum_event_id": sumID.Load()})
	fmt.Println(string(out))
}
