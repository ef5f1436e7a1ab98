//go:build race

package streamstore

const poison = true
