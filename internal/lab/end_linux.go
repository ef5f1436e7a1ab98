package lab

import "syscall"

// endsWithParent has the kernel end a process when the test binary is killed.
func endsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
