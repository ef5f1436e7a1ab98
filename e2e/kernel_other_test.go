//go:build !linux

package e2e

import (
	"errors"
	"os"
	"time"
)

func dropCache(*os.File) error { return errors.ErrUnsupported }

func sendAlone(*os.File, []byte, int64) (time.Duration, error) { return 0, errors.ErrUnsupported }
