// Package script is what the Go clients have in common. ../../README.md has the contract.
package script

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Begin is the time of the first record.
func Begin() time.Time {
	ms, err := strconv.ParseInt(os.Args[4], 10, 64)
	Must(err)
	return time.UnixMilli(ms)
}

// Sought is the time to seek to.
func Sought() time.Time { return Begin().Add(4500 * time.Millisecond) }

// Args of the program.
func Args() (bootstrap, topic string, codecs []string) {
	return os.Args[1], os.Args[2], strings.Split(os.Args[3], ",")
}

var printing sync.Mutex

// Line prints a step; fields are names and values.
func Line(step string, fields ...any) {
	m := map[string]any{"step": step}
	for i := 0; i < len(fields); i += 2 {
		m[fields[i].(string)] = fields[i+1]
	}
	text, err := json.Marshal(m)
	Must(err)
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(text))
}

// Must ends the program with an error.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A Send sends one value, and returns when it is acknowledged.
type Send func(partition int, at time.Time, value string) error

// Key is that of a value.
func Key(value string) string { return strings.Repeat(value, 50) }

// Values sends those of a codec.
func Values(codec string, send Send) {
	for i := range 12 {
		value := fmt.Sprintf("%s-%d", codec, i)
		Must(send(i%4, Begin().Add(time.Duration(i)*time.Second), value))
		Line("sent", "value", value)
	}
}

// Guarantee sends the values of a kind of producer, which finish closes.
func Guarantee(kind string, send Send, finish func() error) {
	for i := range 4 {
		Must(send(i, Begin().Add(20*time.Second), fmt.Sprintf("%s-%d", kind, i)))
	}
	Must(finish())
	for i := range 4 {
		Line("sent", "value", fmt.Sprintf("%s-%d", kind, i))
	}
}

// Transactions are what a library has for them. CopiedOffset is that of partition 1 for group TOPIC-copied.
type Transactions struct {
	Begin, Abort, Commit func() error
	Send                 Send
	Offsets              func() error
}

const CopiedOffset = 7

// Run aborts one and commits another.
func (t Transactions) Run() {
	fill := func(name string) (values []string) {
		Must(t.Begin())
		for i := range 4 {
			values = append(values, fmt.Sprintf("%s-%d", name, i))
			Must(t.Send(i, Begin(), values[i]))
		}
		return values
	}
	fill("aborted")
	Must(t.Abort())
	values := fill("committed")
	Must(t.Offsets())
	Must(t.Commit())
	for _, v := range values {
		Line("sent", "value", v)
	}
	Line("transactions")
}

// A Member notes what it got.
type Member struct {
	name  string
	leave func()

	mu   sync.Mutex
	seen map[string]bool // guarded by mu
}

func (m *Member) Got(value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen[value] = true
	Line("got", "member", m.name, "value", value)
}

func (m *Member) has(value string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[value]
}

// Group runs the rounds; join makes a member consume until leave is called, which commits before.
func Group(send Send, join func(m *Member) (leave func())) {
	member := func(name string) *Member {
		m := &Member{name: name, seen: map[string]bool{}}
		m.leave = join(m)
		return m
	}
	a := member("a")
	rounds("one", send, a)
	b := member("b")
	rounds("both", send, a, b)
	b.leave()
	Line("left")
	rounds("rest", send, a)
	a.leave()
	Line("done")
}

func rounds(name string, send Send, members ...*Member) {
	for n := 0; ; n++ {
		var values [4]string
		for i := range values {
			values[i] = fmt.Sprintf("%s%d-%d", name, n, i)
			Must(send(i, Begin().Add(100*time.Second), values[i]))
			Line("sent", "value", values[i])
		}
		got := map[*Member]bool{}
		for _, v := range values {
			for found := false; !found; {
				for _, m := range members {
					if m.has(v) {
						found, got[m] = true, true
					}
				}
				if !found {
					time.Sleep(50 * time.Millisecond)
				}
			}
		}
		if len(got) == len(members) {
			return
		}
	}
}
