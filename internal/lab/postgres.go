package lab

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// postgresBin is where Debian's package postgresql-15 has the programs.
const postgresBin = "/usr/lib/postgresql/15/bin"

// shared is the PostgreSQL server of a test binary.
var shared struct {
	mu        sync.Mutex
	main      bool // guarded by mu; Main runs
	dir       string
	port      int
	stop      func()
	databases int
	as        *syscall.SysProcAttr
}

// Main runs the tests of a package that shares servers, such as [Postgres], and ends them after.
func Main(m *testing.M) (code int) {
	shared.mu.Lock()
	shared.main = true
	shared.mu.Unlock()
	defer func() {
		endShared()
		if shared.stop != nil {
			shared.stop()
		}
		if shared.dir != "" {
			os.RemoveAll(shared.dir)
		}
	}()
	return m.Run()
}

// Postgres returns the URL of a new database. The tests of a binary share one PostgreSQL 15,
// which the first starts and [Main] ends; without fsync, for tests kill no machine. If it is
// not installed the test fails, or is skipped with -short.
func Postgres(t testing.TB) (url string) {
	t.Helper()
	if _, err := os.Stat(postgresBin); err != nil {
		if testing.Short() {
			t.Skip("PostgreSQL 15 is not installed")
		}
		t.Fatal("PostgreSQL 15 is not installed: run `make lab`, or apt-get install postgresql-15")
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.main {
		t.Fatal("lab.Postgres needs a TestMain that calls lab.Main")
	}
	if shared.stop == nil {
		if err := startPostgres(); err != nil {
			t.Fatal(err)
		}
	}
	shared.databases++
	name := fmt.Sprintf("test%d", shared.databases)
	if out, err := postgresCommand("createdb", "-h", "127.0.0.1", "-p", strconv.Itoa(shared.port), "-U", "postgres", name).CombinedOutput(); err != nil {
		t.Fatalf("create database: %v: %s", err, out)
	}
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", loopback(shared.port), name)
}

// startPostgres makes a data directory and starts a server on it.
func startPostgres() error {
	var err error
	if shared.dir, err = os.MkdirTemp("", "tabletopic-postgres-"); err != nil {
		return err
	}
	shared.as = endsWithParent()
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root; the package made a user
		u, err := user.Lookup("postgres")
		if err != nil {
			return err
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(shared.dir, uid, gid); err != nil {
			return err
		}
		shared.as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(shared.dir, "data")
	if out, err := postgresCommand("initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C").CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	for range 3 { // somebody else may be faster at the port
		if err = startPostgresOn(data); err == nil {
			return nil
		}
	}
	return err
}

func startPostgresOn(data string) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	cmd := postgresCommand("postgres", "-D", data, "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=300")
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // what it says is in out
		close(exited)
	}()
	err = Poll(30*time.Second, func() error {
		if isClosed(exited) {
			return nil
		}
		return postgresCommand("pg_isready", "-q", "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-U", "postgres").Run()
	})
	switch {
	case isClosed(exited):
		return fmt.Errorf("postgres has ended: %s", out)
	case err != nil:
		stop(cmd.Process, exited)
		return fmt.Errorf("postgres is not ready: %w: %s", err, out)
	}
	shared.port, shared.stop = port, func() { stopFast(cmd.Process, exited) }
	return nil
}

// stopFast ends the server without waiting for its clients.
func stopFast(p *os.Process, exited <-chan struct{}) {
	_ = p.Signal(syscall.SIGINT)
	stop(p, exited)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func postgresCommand(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(postgresBin, name), args...)
	cmd.Dir = shared.dir
	cmd.SysProcAttr = shared.as
	return cmd
}
