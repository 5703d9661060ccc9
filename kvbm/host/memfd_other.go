//go:build !linux

package host

import (
	"errors"
	"os"
)

// The arena needs Linux: memfd and its seals. New and Open return errors.ErrUnsupported elsewhere.

func create(int64, bool) (*os.File, []byte, error) { return nil, nil, errors.ErrUnsupported }
func attach(*os.File, int64) (*os.File, []byte, bool, error) {
	return nil, nil, false, errors.ErrUnsupported
}
func populate([]byte) error { return errors.ErrUnsupported }
func unmap([]byte) error    { return errors.ErrUnsupported }
