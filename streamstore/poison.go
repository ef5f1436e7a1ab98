//go:build !race

package streamstore

// poison overwrites memory that is to be used again, so that who reads it still is found out.
const poison = false
