// Command streamlog is an append-only event log on a directory or an S3 bucket: package
// streamstore without Kafka. Each log is a stream, each line a batch.
//
//	streamlog append LOG         append the lines of the standard input
//	streamlog [-n N] tail LOG    print the last N lines with their offsets
//	streamlog trim LOG OFFSET    forget the lines below OFFSET
//	streamlog list               print the logs and the offsets that they hold
//
// One process works on a directory at a time, since each is the same node. A second one takes
// over what the first acknowledged, and the first can acknowledge nothing more: its append fails
// and says so.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "streamlog:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) (err error) {
	flags := flag.NewFlagSet("streamlog", flag.ContinueOnError)
	data := flags.String("data", "./streamlog-data", "`directory` of the metadata database")
	bucket := flags.String("bucket", "", "where the logs live: file:///DIR or s3://BUCKET/PREFIX?region=…; DATA/objects if empty")
	lines := flags.Int("n", 10, "how many `lines` tail prints")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: streamlog [flags] append LOG | tail LOG | trim LOG OFFSET | list")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	l, err := open(ctx, *data, *bucket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	switch command, name, offset := flags.Arg(0), flags.Arg(1), flags.Arg(2); {
	case command == "append" && flags.NArg() == 2:
		return l.append(ctx, name, in, out)
	case command == "tail" && flags.NArg() == 2:
		return l.tail(ctx, name, *lines, out)
	case command == "trim" && flags.NArg() == 3:
		return l.trim(ctx, name, offset, out)
	case command == "list" && flags.NArg() == 1:
		return l.list(ctx, out)
	}
	flags.Usage()
	return errors.New("that is no command of it")
}

// logs is an open stream store, and the names that the bucket gives to streams.
type logs struct {
	meta   *metadata.Store
	bucket objectstore.Bucket
	store  *streamstore.Store
}

// open starts a new life of node 1, which recovers what earlier processes left.
func open(ctx context.Context, data, url string) (*logs, error) {
	data, err := filepath.Abs(data)
	if err != nil {
		return nil, err
	}
	if url == "" {
		url = "file://" + filepath.Join(data, "objects")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	l := &logs{}
	if l.bucket, err = objectstore.Open(ctx, url); err != nil {
		return nil, err
	}
	if err := objectstore.Probe(ctx, l.bucket); err != nil { // that it creates an object only once
		return nil, err
	}
	if l.meta, err = metadata.Open(ctx, "sqlite:"+filepath.Join(data, "metadata.db"), log); err != nil {
		return nil, err
	}
	if l.store, err = streamstore.Open(ctx, streamstore.Config{}, 1, l.bucket, l.meta, l.meta, log); err != nil {
		return nil, errors.Join(err, l.meta.Close())
	}
	return l, nil
}

// close uploads what was appended. What it has no time for is in the WAL, for the next open.
func (l *logs) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return errors.Join(l.store.Close(ctx), l.meta.Close())
}

const namePrefix = "names/"

// stream opens the log of that name; if create is set it makes one that does not exist.
func (l *logs) stream(ctx context.Context, name string, create bool) (*streamstore.Stream, error) {
	key := namePrefix + name
	text, err := l.bucket.Get(ctx, key, 0, -1)
	if errors.Is(err, objectstore.ErrNotFound) && create {
		id, err := l.store.CreateStreams(ctx, 1)
		if err != nil {
			return nil, err
		}
		text = strconv.AppendInt(nil, int64(id), 10)
		if err := l.bucket.PutIfAbsent(ctx, key, text); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, fmt.Errorf("log %s: %w", name, err)
	}
	id, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", key, err)
	}
	// With one node, its epoch will do for its streams: it rises with each process.
	streams, err := l.store.OpenStreams(ctx, []streamstore.OpenRequest{{ID: streamstore.StreamID(id), Epoch: l.store.Node().Epoch}})
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", name, err)
	}
	return streams[0], nil
}

// maxLine is the longest line, in bytes.
const maxLine = 16 << 20

// append returns when every line is durable. It does not wait for one before it sends the next:
// the store holds it back when too many are under way. If it ends early, it says how many lines
// there are all the same.
func (l *logs) append(ctx context.Context, name string, in io.Reader, out io.Writer) error {
	st, err := l.stream(ctx, name, true)
	if err != nil {
		return err
	}
	first := st.NextOffset()
	appended := l.appendLines(ctx, st, in)
	if err := st.Close(context.WithoutCancel(ctx)); err != nil { // waits for all of them
		return cmp.Or(appended, err)
	}
	_, err = fmt.Fprintf(out, "%s: %d lines, from offset %d\n", name, st.ConfirmOffset()-first, first)
	return errors.Join(appended, err)
}

func (l *logs) appendLines(ctx context.Context, st *streamstore.Stream, in io.Reader) error {
	failed := make(chan error, 1)
	done := func(err error) {
		if err != nil {
			select {
			case failed <- err:
			default: // the first one tells why
			}
		}
	}
	lines := make(chan []byte)
	var read error // once lines is closed
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(in)
		scanner.Buffer(nil, maxLine)
		for scanner.Scan() {
			select {
			case lines <- bytes.Clone(scanner.Bytes()):
			case <-ctx.Done():
				return
			}
		}
		if read = scanner.Err(); errors.Is(read, bufio.ErrTooLong) {
			read = fmt.Errorf("a line is longer than %d bytes", maxLine)
		}
	}()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return read
			}
			batch := streamstore.RecordBatch{Count: 1, MaxTimestamp: time.Now().UnixMilli(), Payload: line}
			if _, err := st.Append(ctx, batch, done); err != nil {
				return err
			}
		case err := <-failed:
			return err
		case <-ctx.Done(): // the rest of the input is not wanted
			return nil
		}
	}
}

func (l *logs) tail(ctx context.Context, name string, lines int, out io.Writer) error {
	st, err := l.stream(ctx, name, false)
	if err != nil {
		return err
	}
	end := st.ConfirmOffset()
	for next := max(st.StartOffset(), end-int64(lines)); next < end; {
		batches, err := st.Fetch(ctx, next, end, 1<<20)
		if err != nil {
			return err
		}
		for _, b := range batches {
			if _, err := fmt.Fprintf(out, "%d %s\n", b.BaseOffset, b.Payload); err != nil {
				return err
			}
			next = b.End()
		}
	}
	return nil
}

func (l *logs) trim(ctx context.Context, name, offset string, out io.Writer) error {
	start, err := strconv.ParseUint(offset, 10, 63)
	if err != nil {
		return fmt.Errorf("offset %q: want a number from 0 on", offset)
	}
	st, err := l.stream(ctx, name, false)
	if err != nil {
		return err
	}
	if err := st.Trim(ctx, int64(start)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: starts at offset %d\n", name, st.StartOffset())
	return err
}

func (l *logs) list(ctx context.Context, out io.Writer) error {
	for after := ""; ; {
		page, err := l.bucket.List(ctx, namePrefix, after)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, o := range page {
			name := strings.TrimPrefix(o.Key, namePrefix)
			st, err := l.stream(ctx, name, false)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(out, "%s: offsets %d to %d\n", name, st.StartOffset(), st.ConfirmOffset()); err != nil {
				return err
			}
			after = o.Key
		}
	}
}
