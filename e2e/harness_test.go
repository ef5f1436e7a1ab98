package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/tabletopic/tabletopic/internal/lab"
)

var binary string // built once by TestMain

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tabletopic-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "tabletopic")
	build := exec.Command("go", "build", "-o", binary, "../cmd/tabletopic")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return lab.Main(m)
}

// environment is the process environment without our own variables, so that nothing but
// the arguments configures what is tested.
func environment(extra ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "TABLETOPIC_") {
			env = append(env, kv)
		}
	}
	return append(env, extra...)
}

// freeAddress is a loopback address that nobody listens on. It stays the node's own across
// restarts.
func freeAddress(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", lab.FreePort(t))
}

// A server is one `tabletopic serve` that can be killed and started again.
type server struct {
	t     testing.TB
	kafka string
	http  string
	data  string
	flags []string
	env   []string

	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has ended
	log    *logBuffer    // all lives
}

// newServer prepares a server on a new data directory; flags are added to each start.
func newServer(t testing.TB, flags ...string) *server {
	t.Helper()
	s := &server{t: t, kafka: freeAddress(t), http: freeAddress(t), data: t.TempDir(), flags: flags, log: &logBuffer{}}
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("server log (end):\n%s", s.log.tail(16<<10))
		}
	})
	return s
}

func startServer(t testing.TB, flags ...string) *server {
	t.Helper()
	s := newServer(t, flags...)
	s.start()
	return s
}

// start runs the binary and waits until it is ready.
func (s *server) start() {
	s.t.Helper()
	if err := s.launch(); err != nil {
		s.t.Fatal(err)
	}
	s.waitReady()
}

func (s *server) launch() error {
	args := append([]string{"serve", "--data", s.data, "--kafka", s.kafka, "--http", s.http}, s.flags...)
	s.cmd = exec.Command(binary, args...)
	s.cmd.Env = environment(s.env...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	s.exited = exited
	cmd := s.cmd
	go func() {
		_ = cmd.Wait() // the exit code is read from ProcessState
		close(exited)
	}()
	return nil
}

func (s *server) waitReady() {
	s.t.Helper()
	eventually(s.t, 3*time.Minute, "server ready", func() error {
		select {
		case <-s.exited:
			s.t.Fatalf("server ended with code %d:\n%s", s.cmd.ProcessState.ExitCode(), s.log.tail(8<<10))
		default:
		}
		resp, err := http.Get("http://" + s.http + "/readyz")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			return errors.New(resp.Status)
		}
		return nil
	})
}

// kill ends the process with SIGKILL and waits for it.
func (s *server) kill() { s.signal(syscall.SIGKILL) }

// stop ends the process with SIGTERM and waits for it; it does nothing if none runs.
func (s *server) stop() { s.signal(syscall.SIGTERM) }

func (s *server) signal(sig syscall.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(sig) // gone already is as good
	select {
	case <-s.exited:
	case <-time.After(90 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.exited
		s.t.Errorf("server did not end within 90 s of %s", sig)
	}
	s.cmd = nil
}

// exitCode waits for the process to end by itself.
func (s *server) exitCode(within time.Duration) int {
	s.t.Helper()
	select {
	case <-s.exited:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		s.t.Fatalf("server still runs after %s:\n%s", within, s.log.tail(8<<10))
		return -1
	}
}

func (s *server) registryURL() string { return "http://" + s.http }
func (s *server) catalogURL() string  { return "http://" + s.http + "/iceberg" }

func (s *server) client(opts ...kgo.Opt) *kgo.Client {
	s.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.kafka)}, opts...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(cl.Close)
	return cl
}

func (s *server) admin() *kadm.Client { return kadm.NewClient(s.client()) }

// createTopic makes a topic, with a table whose rows are visible about lag after they came.
func (s *server) createTopic(name string, partitions int32, lag time.Duration, more ...string) {
	s.t.Helper()
	config := map[string]*string{"table.topic.enable": kadm.StringPtr("true"), "table.topic.target.lag.ms": kadm.StringPtr(fmt.Sprint(lag.Milliseconds()))}
	for i := 0; i+1 < len(more); i += 2 {
		config[more[i]] = kadm.StringPtr(more[i+1])
	}
	resp, err := s.admin().CreateTopic(context.Background(), partitions, 1, config, name)
	if err != nil {
		s.t.Fatalf("create topic %s: %v %s", name, err, resp.ErrMessage)
	}
}

func (s *server) registry() *sr.Client {
	s.t.Helper()
	cl, err := sr.NewClient(sr.URLs(s.registryURL()), sr.HTTPClient(&http.Client{Timeout: time.Minute}))
	if err != nil {
		s.t.Fatal(err)
	}
	return cl
}

// cli runs the binary with args against this server and returns what it printed.
func (s *server) cli(stdin string, args ...string) (stdout string, code int) {
	s.t.Helper()
	cmd := exec.Command(binary, append(args, "--bootstrap", s.kafka, "--http", s.http)...)
	cmd.Env = environment()
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		s.t.Fatal(err)
	}
	return out.String() + errs.String(), cmd.ProcessState.ExitCode()
}

// api asks the administration API.
func (s *server) api(path string, out any) error {
	resp, err := http.Get("http://" + s.http + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s: %s: %s", path, resp.Status, text)
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// run executes a command of the lab or of the examples and returns its standard output.
func run(t testing.TB, env []string, name string, args ...string) string {
	t.Helper()
	out, err := tryRun(env, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryRun(env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	if name == binary {
		cmd.Env = environment(env...)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, tail(out.Bytes(), 4<<10), tail(errs.Bytes(), 4<<10))
	}
	return out.String(), nil
}

// eventually polls condition until it holds, and fails with its last error.
func eventually(t testing.TB, within time.Duration, what string, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, within, err)
		}
		<-tick.C
	}
}

// logBuffer keeps the end of what a process prints.
type logBuffer struct {
	mu  sync.Mutex
	buf []byte // guarded by mu
}

const logKept = 4 << 20

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf = append(b.buf, p...)
	if len(b.buf) > 2*logKept {
		b.buf = append([]byte(nil), b.buf[len(b.buf)-logKept:]...)
	}
	return len(p), nil
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.buf)
}

func (b *logBuffer) tail(n int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(tail(b.buf, n))
}

func tail(b []byte, n int) []byte {
	if len(b) > n {
		return b[len(b)-n:]
	}
	return b
}

// Keys of the lab's S3 server, for a node's environment.
var s3Credentials = []string{"AWS_ACCESS_KEY_ID=" + lab.AccessKey, "AWS_SECRET_ACCESS_KEY=" + lab.SecretKey}

func python() string { return filepath.Join(lab.Home(), "python", "venv", "bin", "python") }
