// Package lab starts other people's servers for tests: the real thing on loopback, one per
// test, gone when the test is.
//
// `make lab` installs them into ~/.cache/tabletopic-lab, or where TABLETOPIC_LAB says. A
// test that needs one that is missing fails with that hint; with -short it is skipped.
package lab

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Home is the directory that everything is installed in.
func Home() string {
	if dir := os.Getenv("TABLETOPIC_LAB"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "tabletopic-lab")
	}
	return filepath.Join(home, ".cache", "tabletopic-lab")
}

// Path returns the path of an installed file. Without it the test fails, or is skipped with -short.
func Path(t testing.TB, elem ...string) string {
	t.Helper()
	path := filepath.Join(append([]string{Home()}, elem...)...)
	if _, err := os.Stat(path); err != nil {
		if testing.Short() {
			t.Skipf("%s is not installed", path)
		}
		t.Fatalf("%s is not installed: run `make lab`", path)
	}
	return path
}

// FreePort returns a TCP port of the loopback that nobody listens on at the moment, and that it has
// given to nobody else. It lies below the ports that the kernel gives to clients, so that a server that
// is ended and started again finds it free.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

var given sync.Map // ports

func freePort() (port int, err error) {
	for range 100 {
		port = 15_000 + rand.IntN(17_000)
		if _, taken := given.LoadOrStore(port, true); taken {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", loopback(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port between 15000 and 32000: %w", err)
}

// Start runs cmd until the test ends, and waits until ready returns nil, for up to
// timeout. What the process says is in the test's log if it fails.
// The returned function ends it before.
func Start(t testing.TB, cmd *exec.Cmd, timeout time.Duration, ready func() error) (stop func()) {
	t.Helper()
	stop, err := start(t, cmd, timeout, ready)
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

// StartOnPort is Start of a server on a free port. It tries again, on another, if the
// server ends: somebody else may have been faster.
func StartOnPort(t testing.TB, timeout time.Duration, command func(port int) *exec.Cmd) (port int) {
	t.Helper()
	var err error
	for range 3 {
		port = FreePort(t)
		if _, err = start(t, command(port), timeout, func() error { return dial(port) }); err == nil {
			return port
		}
	}
	t.Fatal(err)
	return 0
}

func start(t testing.TB, cmd *exec.Cmd, timeout time.Duration, ready func() error) (end func(), err error) {
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = endsWithParent()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	exited := make(chan struct{})
	var exit error
	go func() {
		exit = cmd.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		stop(cmd.Process, exited)
		if t.Failed() {
			t.Logf("%s said (end):\n%s", filepath.Base(cmd.Path), out.tail(4<<10))
		}
	})
	if err := Poll(timeout, func() error {
		select {
		case <-exited:
			return nil
		default:
			return ready()
		}
	}); err != nil {
		return nil, fmt.Errorf("%s is not ready after %v: %w", filepath.Base(cmd.Path), timeout, err)
	}
	select {
	case <-exited:
		return nil, fmt.Errorf("%s has ended: %v: %s", filepath.Base(cmd.Path), exit, out)
	default:
		return func() { stop(cmd.Process, exited) }, nil
	}
}

// stop asks the process to end, and makes it after 5 s.
func stop(p *os.Process, exited <-chan struct{}) {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-exited:
	case <-time.After(5 * time.Second):
		_ = p.Kill()
		<-exited
	}
}

// Poll calls check, every 20 ms, until it returns nil; after timeout it returns the last error.
func Poll(timeout time.Duration, check func() error) error {
	deadline := time.Now().Add(timeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-tick.C
	}
}

// output keeps the last 64 KiB that a process writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Write(p)
	if over := o.buf.Len() - 64<<10; over > 0 {
		o.buf.Next(over)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// tail returns the last n bytes.
func (o *output) tail(n int) string {
	s := o.String()
	return s[max(0, len(s)-n):]
}

// dial tells whether somebody listens on a loopback port.
func dial(port int) error {
	c, err := net.DialTimeout("tcp", loopback(port), time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
