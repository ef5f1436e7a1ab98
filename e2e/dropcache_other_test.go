//go:build !linux

package e2e

import (
	"errors"
	"os"
)

func dropCache(*os.File) error { return errors.ErrUnsupported }
