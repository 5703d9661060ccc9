package object

import (
	"context"
	"errors"
)

// Bucket has the operations that the tier needs from an object store. Its methods return when ctx ends. Failures of the store itself are
// a [Fault].
type Bucket interface {
	// PutIfAbsent writes an object, and reports whether it did: false means that an object of this name is there already. After a lost
	// answer that can be the object of this very call.
	PutIfAbsent(ctx context.Context, name string, data []byte) (created bool, err error)
	// GetRange fills the slices of dst, one after the other, with the bytes of an object from offset on. It calls filled, if that is not
	// nil, with the index of each slice that is full, while the bytes are still in the CPU's cache. The error of an
	// object that is not there, or that is too short, wraps [ErrMissing]. dst may have been changed in part after an error.
	GetRange(ctx context.Context, name string, offset int64, dst [][]byte, filled func(i int)) error
	// Delete removes an object. It is no error if there is none.
	Delete(ctx context.Context, name string) error
	// List returns at most limit objects whose names begin with prefix and are greater than after, by ascending name, and whether there
	// are more.
	List(ctx context.Context, prefix, after string, limit int) (page []Object, more bool, err error)
}

// Object is an object in a list.
type Object struct {
	Name string
	// Size is in bytes.
	Size int64
}

// Errors of a block or a call. Errors of contexts are returned as they are, wrapped.
var (
	// ErrMissing is the error of a block that is not in the store.
	ErrMissing = errors.New("not in the object store")
	// ErrDamaged is the error of a block whose bytes do not have the tag of its index.
	ErrDamaged = errors.New("the bytes in the object store are damaged or forged")
	// ErrBusy is the error of a block for which no pack has room, because earlier packs are still being written.
	ErrBusy = errors.New("all packs are being written")
	// ErrUnavailable is the error of calls while the tier is not healthy. Its text has the reason.
	ErrUnavailable = errors.New("the object store is unavailable")
	// ErrClosed is the error of calls after Run has ended.
	ErrClosed = errors.New("the object tier is closed")
)

// Fault is a failure of the store, and not of one object.
type Fault struct {
	// Reason describes the failure and what to change.
	Reason string
	// Lasting marks a failure that stays until something is changed, such as wrong credentials.
	Lasting bool
	// Err is the error of the client.
	Err error
}

func (f *Fault) Error() string { return f.Reason + ": " + f.Err.Error() }

// Unwrap returns the error of the client.
func (f *Fault) Unwrap() error { return f.Err }
