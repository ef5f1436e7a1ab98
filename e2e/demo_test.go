package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// The README's first command, as it stands there, twice; and with its port taken.
func TestDemo(t *testing.T) {
	demo := func() (string, int) {
		cmd := exec.Command("go", "run", "./cmd/tabletopic", "demo")
		cmd.Dir = ".."
		cmd.Env = environment()
		out, _ := cmd.CombinedOutput() // the exit code is checked
		return string(out), cmd.ProcessState.ExitCode()
	}
	for range 2 {
		out, code := demo()
		if code != 0 || !strings.Contains(out, "1000000") && !strings.Contains(out, "1,000,000") {
			t.Fatalf("exit %d\n%s", code, out)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:9092")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, code := demo()
	if code != 1 || !strings.Contains(out, "127.0.0.1:9092") || !strings.Contains(out, "in use") {
		t.Errorf("with the port taken: exit %d\n%s", code, out)
	}
}

var fence = regexp.MustCompile("(?ms)^```(?:sh)?\n(.*?)^```$")

// Every command in the README works when it is pasted, in order, into one shell. Long
// commands run in the background, as the reader would in another terminal.
func TestReadmeTour(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tour, found := strings.Cut(string(text), "## A tour in a minute")
	if !found {
		t.Fatal("README.md has no tour")
	}
	tour, _, _ = strings.Cut(tour, "\n## ")
	out := runCommands(t, tour)
	if !strings.Contains(out, "1 ada 12.50 None 0") || !strings.Contains(out, "3 ada 1.00 gift") {
		t.Errorf("the rows are not there:\n%s", out)
	}
}

// runCommands pastes the commands of a document into one shell, and returns what it prints.
func runCommands(t *testing.T, text string) string {
	t.Helper()
	var script strings.Builder
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		script.WriteString(m[1])
	}
	if strings.Count(script.String(), "tabletopic") < 5 {
		t.Fatalf("the document has too few commands:\n%s", script.String())
	}
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "tabletopic")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"+script.String())
	cmd.Dir = dir
	cmd.Env = environment("PATH=" + dir + ":" + filepath.Dir(python()) + ":" + filepath.Join(lab.Home(), "duckdb", "venv", "bin") + ":" + os.Getenv("PATH"))
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// Each of the examples' queries prints the same five pages.
func TestExampleQueries(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	l.queryEnv = sharedEngines(t)
	s.createTopic("clicks", 2, 500*time.Millisecond)
	produceExample(t, s, "python", "clicks", 0, 1203)
	waitForTable(t, s, "clicks", 1203, 3*time.Minute)
	want := "/page/0\t3\n/page/1\t3\n/page/10\t3\n/page/100\t3\n/page/101\t3\n"
	jars, err := os.ReadFile(filepath.Join(lab.Home(), "spark", "classpath"))
	if err != nil {
		t.Fatalf("%v: run make lab", err)
	}
	for engine, venv := range map[string]string{"duckdb": "duckdb", "pyiceberg": "python", "spark": "spark"} {
		out := run(t, []string{"SPARK_JARS=" + strings.ReplaceAll(strings.TrimSpace(string(jars)), ":", ","), "SPARK_LOCAL_IP=127.0.0.1"},
			filepath.Join(lab.Home(), venv, "venv", "bin", "python"), "../examples/query/"+engine+"_query.py", "default.clicks", s.catalogURL())
		if out != want {
			t.Errorf("%s printed\n%swant\n%s", engine, out, want)
		}
	}
	sql, err := os.ReadFile("../examples/query/trino.sql")
	if err != nil {
		t.Fatal(err)
	}
	_, query, _ := strings.Cut(string(sql), ");\n")
	got := l.query(t, s, "trino", strings.TrimSuffix(strings.TrimSpace(query), ";"))
	if want := "page,clicks\n" + strings.ReplaceAll(want, "\t", ","); got != want {
		t.Errorf("trino printed\n%swant\n%s", got, want)
	}
}

// A mistyped setting is refused with its place and the name that was meant, exit code 2.
func TestWrongConfiguration(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte("wal-lingr: 5ms\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(empty, []byte("warehouse:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		env  string
		code int
		says string
	}{
		{[]string{"serve", "--wal-lingr", "5ms"}, "", 2, "--wal-lingr"},
		{[]string{"serve", "--config", file}, "", 2, "wal-linger"},
		{[]string{"serve"}, "TABLETOPIC_WAL_LINGR=5ms", 2, "wal-linger"},
		{[]string{"serve", "--wal-linger", "fast"}, "", 2, "wal-linger"},
		{[]string{"serve", "--wal", "file", "--object-store", "s3://b/p?region=x"}, "", 1, "wal file"},
		{[]string{"serve", "--object-store", "ftp://x"}, "", 1, "ftp"},
		{[]string{"serve", "--kafka", "nowhere"}, "", 1, "HOST:PORT"},
		{[]string{"serve", "--config", empty}, "", 2, "warehouse has no value"},
		{[]string{"serve", "--kafka", "nowhere"}, "TABLETOPIC_PORT_9092_TCP_ADDR=10.0.0.1", 1, "HOST:PORT"},
		{[]string{"nonsense"}, "", 2, "nonsense"},
		{[]string{"topic"}, "", 2, "subcommand"},
		{[]string{"topic", "list", "--bootstrap", "127.0.0.1:1"}, "", 1, "tabletopic serve"},
		{[]string{"schema", "list", "--http", "127.0.0.1:1"}, "", 1, "tabletopic serve"},
		{[]string{"table", "list", "--http", "127.0.0.1:1"}, "", 1, "tabletopic serve"},
		{[]string{"schema", "list", "--http", "ftp://x"}, "", 2, "HOST:PORT"},
	} {
		cmd := exec.Command(binary, c.args...)
		cmd.Dir = t.TempDir()
		cmd.Env = environment(c.env)
		out, _ := cmd.CombinedOutput() // the exit code is checked
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.says) {
			t.Errorf("%s %s: exit %d, want %d and %q\n%s", c.env, fmt.Sprint(c.args), code, c.code, c.says, out)
		}
	}
}
