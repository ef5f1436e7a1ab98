package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The commands of the README print what it says.
func TestREADME(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "streamlog"), ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for i, block := range strings.Split(string(text), "```") {
		lines, ok := strings.CutPrefix(block, "console\n")
		if i%2 == 0 || !ok {
			continue
		}
		for _, part := range strings.Split(lines, "$ ")[1:] {
			command, want, _ := strings.Cut(part, "\n")
			run := exec.Command("bash", "-c", command)
			run.Dir = dir
			got, err := run.CombinedOutput()
			if err != nil || string(got) != want {
				t.Fatalf("%s: %v\n%swant\n%s", command, err, got, want)
			}
			commands++
		}
	}
	if commands < 7 {
		t.Fatalf("%d commands found in the README", commands)
	}
}

// What is acknowledged outlives the process that is killed.
func TestKilledWhileItAppends(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "streamlog")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	run := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.Command(binary, append([]string{"-data", dir}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
		return string(out)
	}
	run("first\n", "append", "log")
	killed := exec.Command(binary, "-data", dir, "append", "log")
	in, err := killed.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte(strings.Repeat("second\n", 10_000))); err != nil { // more than a pipe holds: some were taken
		t.Fatal(err)
	}
	killed.Process.Kill()
	_ = killed.Wait() // it says that it was killed
	if out := run("third\n", "append", "log"); !strings.HasPrefix(out, "log: 1 lines") {
		t.Fatal(out)
	}
	lines := strings.Split(strings.TrimSpace(run("", "-n", "1000000", "tail", "log")), "\n")
	if lines[0] != "0 first" || !strings.HasSuffix(lines[len(lines)-1], " third") {
		t.Fatalf("%q … %q", lines[0], lines[len(lines)-1])
	}
	for i, line := range lines[1 : len(lines)-1] {
		if !strings.HasSuffix(line, " second") {
			t.Fatalf("line %d: %q", i+1, line)
		}
	}
}

// An interrupted append keeps what it has read, and says how much that is; so does one that
// meets a line which is too long.
func TestAppendEndsEarly(t *testing.T) {
	dir := t.TempDir()
	appendTo := func(ctx context.Context, in io.Reader) (string, error) {
		var out strings.Builder
		err := run(ctx, []string{"-data", dir, "append", "log"}, in, &out)
		return out.String(), err
	}
	ctx, interrupt := context.WithCancel(t.Context())
	in, terminal := io.Pipe()
	go func() {
		for range 3 {
			_, _ = io.WriteString(terminal, "line\n") // the third is taken up when the second is on its way
		}
		interrupt()
	}()
	if out, err := appendTo(ctx, in); err != nil || !strings.HasSuffix(out, " lines, from offset 0\n") {
		t.Errorf("interrupted: %q, %v", out, err)
	}
	out, err := appendTo(t.Context(), strings.NewReader("good\n"+strings.Repeat("x", maxLine+1)))
	if err == nil || !strings.Contains(err.Error(), "longer than") || !strings.HasPrefix(out, "log: 1 lines") {
		t.Errorf("a long line: %q, %v", out, err)
	}
}
