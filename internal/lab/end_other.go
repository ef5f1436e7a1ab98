//go:build !linux

package lab

import "syscall"

// endsWithParent does nothing here: what a test binary that is killed has started is ended by hand.
func endsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
