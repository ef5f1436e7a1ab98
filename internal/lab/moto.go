package lab

import (
	_ "embed"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

//go:embed moto.py
var motoScript string

// Glue starts a server of the Glue API, empty, with Glue's optimistic lock, and returns its
// endpoint. It checks no signatures, and takes role requests too.
func Glue(t testing.TB) (endpoint string) {
	t.Helper()
	python := Path(t, "moto", "venv", "bin", "python")
	port := StartOnPort(t, time.Minute, func(port int) *exec.Cmd {
		return exec.Command(python, "-c", motoScript, "-H", "127.0.0.1", "-p", strconv.Itoa(port))
	})
	return "http://" + loopback(port)
}
