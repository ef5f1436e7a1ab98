package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/worker"
)

// How a replay is exactly once. Each batch of letters is one record batch of an idempotent
// producer, and the dead letter topic tells of it before and after, by records with the header
// headerReplay whose value is a [replay]:
//
//	begun ─▶ the batch into the source topic, acknowledged ─▶ done
//
// Whoever finds a batch begun and not done sends it again as it was, with the same producer id and
// sequence: the leader of the partition takes it once, whichever of the two comes first. It knows a
// producer for 24 hours.
const (
	headerReplay   = "tabletopic.replay"
	replayBegun    = "begun"
	replayDone     = "done"
	replayTrusted  = 20 * time.Hour // less than producers are known
	replayLetters  = 1000           // in a batch, at most
	replayBytes    = 256 << 10      // … which is closed at this size
	replayProducer = "tabletopic-dlq-replay"
)

// A replay is a batch of letters of one partition that go back to their source.
type replay struct {
	Partition int32   `json:"partition"` // of the source
	Producer  int64   `json:"producer_id"`
	Epoch     int16   `json:"producer_epoch"`
	Sequence  int32   `json:"sequence"` // of the first letter
	Letters   []int64 `json:"letters"`  // their offsets in the dead letter topic
}

// is reports whether two markers are of the same batch.
func (b *replay) is(o *replay) bool { return b.Producer == o.Producer && b.Sequence == o.Sequence }

// replays is what a partition of a dead letter topic tells of them.
type replays struct {
	next  int64          // it is read up to here
	done  map[int64]bool // letters, by offset
	begun *replay        // and not done; nil if there is none
	since time.Time      // of begun
}

// replays reads the markers of a partition.
func (l *letters) replays(ctx context.Context, index int32) (*replays, error) {
	r := &replays{next: l.bounds[index][0], done: map[int64]bool{}}
	return r, r.advance(ctx, l, index, l.bounds[index][1])
}

// advance reads on.
func (s *replays) advance(ctx context.Context, l *letters, index int32, to int64) error {
	from := s.next
	s.next = max(from, to)
	return l.each(ctx, index, from, to, s.read)
}

// read takes in a record, if it is a marker. A batch that begins while another has not ended, or
// with a letter that is done, is that of a command that came too late, and void.
func (s *replays) read(r *kgo.Record) error {
	if len(r.Headers) != 1 || r.Headers[0].Key != headerReplay {
		return nil
	}
	b := &replay{}
	err := json.Unmarshal(r.Value, b)
	if err == nil && len(b.Letters) == 0 {
		err = errors.New("it names no letters")
	}
	if err != nil {
		return fmt.Errorf("marker of a replay at offset %d of partition %d: %w", r.Offset, r.Partition, err)
	}
	switch string(r.Headers[0].Value) {
	case replayBegun:
		if s.begun == nil && !s.any(b.Letters) {
			s.begun, s.since = b, r.Timestamp
		}
	case replayDone:
		if s.begun != nil && s.begun.is(b) {
			s.begun = nil
		}
		for _, offset := range b.Letters {
			s.done[offset] = true
		}
	}
	return nil
}

// any reports whether one of the letters is done.
func (s *replays) any(letters []int64) bool {
	return slices.ContainsFunc(letters, func(offset int64) bool { return s.done[offset] })
}

func newDLQReplay(s *server) *cobra.Command {
	var (
		f         letterFilter
		dry       bool
		unsettled string
		out       = newOutput()
	)
	cmd := &cobra.Command{
		Use:   "replay TOPIC",
		Short: "Produce the dead letters of a topic to it again, after what was wrong was fixed",
		Long: `Replay produces each dead letter to its topic again, into the partition that it came from, with its
key, value, headers and time, and a header ` + worker.HeaderReplayOf + ` that says which record it is:
TOPIC ID/PARTITION/OFFSET. A letter is replayed once, also if the command is killed and run again,
or run by two people at a time. What still cannot become a row becomes another letter. Of a topic
with table.topic.fan.out TOPIC:RECORD replays the letters of one type of records.`,
		Example: "  tabletopic dlq replay clicks --dry-run\n  tabletopic dlq replay clicks --cause unknown-schema",
		Args:    usage(cobra.ExactArgs(1)),
	}
	f.flags(cmd, 0, "replay at most this many; 0 is all")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would be replayed")
	cmd.Flags().StringVar(&unsettled, "unsettled", "", "what becomes of a batch that was cut off so long ago that servers do not know it any more: `again or done`")
	out.flag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if unsettled != "" && unsettled != "again" && unsettled != "done" || f.limit < 0 {
			return usageError{fmt.Errorf("want --unsettled again or done, and --limit not below 0")}
		}
		topic, record := partition.SplitRoute(args[0])
		f.record = record
		r, err := newReplayer(cmd.Context(), s, topic, &f, unsettled)
		if err != nil {
			return err
		}
		defer r.close()
		for _, p := range r.letters.partitions(&f) {
			if err := r.partition(cmd.Context(), p, dry); err != nil {
				return fmt.Errorf("replay partition %d: %w; run the same again to go on", p, err)
			}
		}
		r.bar.done()
		what := "replayed %d dead letters to %s"
		if dry {
			what = "%d dead letters would be replayed to %s"
		}
		return out.say(cmd.OutOrStdout(), map[string]any{"topic": topic, "letters": r.sent, "dry_run": dry}, what, r.sent, topic)
	}
	return cmd
}

// A replayer sends letters back to their topic.
type replayer struct {
	letters   *letters
	filter    *letterFilter
	unsettled string
	cl        *kgo.Client
	adm       *kadm.Client
	topicID   kadm.TopicID
	producer  int64
	epoch     int16
	known     *replays        // of the partition at hand
	sequence  map[int32]int32 // next, by partition
	bar       *progress
	passed    int64
	sent      int64
}

func newReplayer(ctx context.Context, s *server, topic string, f *letterFilter, unsettled string) (*replayer, error) {
	cl, err := s.kafka(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ClientID(replayProducer))
	if err != nil {
		return nil, err
	}
	r := &replayer{filter: f, unsettled: unsettled, cl: cl, adm: kadm.NewClient(cl), sequence: map[int32]int32{}}
	if err := r.open(ctx, s, topic); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *replayer) close() { r.adm.Close() }

func (r *replayer) open(ctx context.Context, s *server, topic string) (err error) {
	if r.letters, err = openLetters(ctx, s, r.adm, topic); err != nil {
		return err
	}
	details, err := r.adm.ListTopics(ctx, topic)
	if err == nil {
		err = details.Error()
	}
	if err != nil {
		return kafkaError("replay", topic, err, "")
	}
	r.topicID = details[topic].ID
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch = -1, -1
	resp, err := req.RequestWith(ctx, r.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("producer id: %w", err)
	}
	r.producer, r.epoch = resp.ProducerID, resp.ProducerEpoch
	total := int64(0)
	for _, p := range r.letters.partitions(r.filter) {
		total += r.letters.bounds[p][1] - r.letters.bounds[p][0]
	}
	r.bar = newProgressOf(total, "replaying", "letters")
	return nil
}

// partition replays the letters of one partition.
func (r *replayer) partition(ctx context.Context, index int32, dry bool) (err error) {
	if r.known, err = r.letters.replays(ctx, index); err != nil {
		return err
	}
	if r.known.begun != nil && !dry {
		if err := r.settle(ctx, index); err != nil {
			return err
		}
	}
	var batch []letter
	size := 0
	send := func() error {
		if len(batch) == 0 {
			return nil
		}
		r.sent += int64(len(batch))
		defer func() { batch, size = batch[:0], 0 }()
		if dry {
			return nil
		}
		return r.send(ctx, index, batch)
	}
	errEnough := errors.New("enough")
	bounds := r.letters.bounds[index]
	err = r.letters.each(ctx, index, bounds[0], bounds[1], func(rec *kgo.Record) error {
		r.passed++
		r.bar.set(r.passed)
		l, ok := parseLetter(r.letters.topic, rec)
		if !ok || r.known.done[l.Offset] || !r.filter.takes(&l) {
			return nil
		}
		if r.filter.limit > 0 && r.sent+int64(len(batch)) == int64(r.filter.limit) {
			return errEnough
		}
		if len(batch) > 0 && (len(batch) == replayLetters || l.SourcePartition != batch[0].SourcePartition) {
			if err := send(); err != nil {
				return err
			}
		}
		batch = append(batch, l)
		if size += len(l.Key) + len(l.Value); size >= replayBytes {
			return send()
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return send()
}

// settle ends the batch that an earlier command began.
func (r *replayer) settle(ctx context.Context, index int32) error {
	b := r.known.begun
	if time.Since(r.known.since) > replayTrusted {
		switch r.unsettled {
		case "done":
			return r.done(ctx, index, b)
		case "again":
		default:
			return fmt.Errorf("a replay was cut off at %s, and servers do not know any more whether its last %d letters came through: look for the header %s in the topic, and say --unsettled done or again",
				r.known.since.UTC().Format(time.RFC3339), len(b.Letters), worker.HeaderReplayOf)
		}
	}
	var batch []letter
	if err := r.letters.each(ctx, index, b.Letters[0], b.Letters[len(b.Letters)-1]+1, func(rec *kgo.Record) error {
		if l, ok := parseLetter(r.letters.topic, rec); ok && slices.Contains(b.Letters, l.Offset) {
			batch = append(batch, l)
		}
		return nil
	}); err != nil {
		return err
	}
	if len(batch) != len(b.Letters) {
		return fmt.Errorf("%d letters of a replay that was cut off are gone from %s: retention of the topic removed them", len(b.Letters)-len(batch), r.letters.name)
	}
	r.sent += int64(len(batch))
	return r.produce(ctx, index, b, batch)
}

// send begins a batch and brings it to the source.
func (r *replayer) send(ctx context.Context, index int32, batch []letter) error {
	b := &replay{Partition: batch[0].SourcePartition, Producer: r.producer, Epoch: r.epoch, Sequence: r.sequence[batch[0].SourcePartition]}
	for _, l := range batch {
		b.Letters = append(b.Letters, l.Offset)
	}
	if err := r.begin(ctx, index, b); err != nil {
		return err
	}
	r.sequence[b.Partition] += int32(len(batch))
	return r.produce(ctx, index, b, batch)
}

// begin marks a batch, unless another command began one since the markers were read.
func (r *replayer) begin(ctx context.Context, index int32, b *replay) error {
	at, err := r.append(ctx, index, replayBegun, b)
	if err != nil {
		return err
	}
	if err := r.known.advance(ctx, r.letters, index, at); err != nil {
		return err
	}
	if r.known.begun != nil || r.known.any(b.Letters) {
		return errors.New("another replay of these letters is under way")
	}
	return nil
}

// produce sends a batch that has begun, and marks it as done.
func (r *replayer) produce(ctx context.Context, index int32, b *replay, batch []letter) error {
	records := make([]record.Record, len(batch))
	for i, l := range batch {
		records[i] = record.Record{Timestamp: l.SourceTime.UnixMilli(), Key: l.Key, Value: l.Value}
		for _, h := range l.Headers {
			if h.Key != worker.HeaderReplayOf { // of an earlier replay, after which it was a dead letter again
				records[i].Headers = append(records[i].Headers, record.Header{Key: h.Key, Value: h.Value})
			}
		}
		records[i].Headers = append(records[i].Headers, record.Header{Key: worker.HeaderReplayOf, Value: fmt.Appendf(nil, "%s/%d/%d", l.SourceTopicID, l.SourcePartition, l.SourceOffset)})
	}
	data, err := record.AppendBatch(nil, record.BatchOptions{Idempotent: true, ProducerID: b.Producer, ProducerEpoch: b.Epoch, BaseSequence: b.Sequence}, records)
	if err != nil {
		return err
	}
	if err := r.deliver(ctx, b.Partition, data); err != nil {
		return fmt.Errorf("letters at offsets %d to %d of %s: %w", b.Letters[0], b.Letters[len(b.Letters)-1], r.letters.name, err)
	}
	return r.done(ctx, index, b)
}

// deliver produces a record batch until the leader has answered, wherever it is.
func (r *replayer) deliver(ctx context.Context, partition int32, data []byte) error {
	for {
		err := r.tryDeliver(ctx, partition, data)
		switch {
		case err == nil, errors.Is(err, kerr.DuplicateSequenceNumber):
			return nil
		case errors.As(err, new(*kerr.Error)) && !kerr.IsRetriable(err):
			return err
		}
		select {
		case <-time.After(time.Second): // the outcome may not be known: the same batch counts once
		case <-ctx.Done():
			return err
		}
	}
}

func (r *replayer) tryDeliver(ctx context.Context, partition int32, data []byte) error {
	details, err := r.adm.ListTopics(ctx, r.letters.topic)
	if err == nil {
		err = details.Error()
	}
	if err != nil {
		return err
	}
	p, ok := details[r.letters.topic].Partitions[partition]
	if !ok {
		return fmt.Errorf("partition %d: %w", partition, kerr.InvalidPartitions)
	}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 30_000
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic, topic.TopicID = r.letters.topic, r.topicID
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, data
	topic.Partitions = append(topic.Partitions, rp)
	req.Topics = append(req.Topics, topic)
	answer, err := r.cl.Broker(int(p.Leader)).RetriableRequest(ctx, req)
	if err != nil {
		return err
	}
	topics := answer.(*kmsg.ProduceResponse).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 1 {
		return errors.New("produce was not answered")
	}
	got := topics[0].Partitions[0]
	return kafkaError("replay to", r.letters.topic, kerr.ErrorForCode(got.ErrorCode), text(got.ErrorMessage))
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// done marks a batch that the source has.
func (r *replayer) done(ctx context.Context, index int32, b *replay) error {
	for _, offset := range b.Letters {
		r.known.done[offset] = true
	}
	_, err := r.append(ctx, index, replayDone, b)
	return err
}

// append writes a marker and returns its offset.
func (r *replayer) append(ctx context.Context, index int32, what string, b *replay) (int64, error) {
	value, err := json.Marshal(b)
	if err != nil {
		return 0, err
	}
	rec, err := r.cl.ProduceSync(ctx, &kgo.Record{Topic: r.letters.name, Partition: index, Value: value, Headers: []kgo.RecordHeader{{Key: headerReplay, Value: []byte(what)}}}).First()
	if err != nil {
		return 0, fmt.Errorf("marker in %s: %w", r.letters.name, err)
	}
	return rec.Offset, nil
}
