// Package e2e runs the real binary as a process against real clients, S3 servers, catalogs
// and query engines, which `make lab` installs.
package e2e
