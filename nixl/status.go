package nixl

import "fmt"

// Status is a status code of NIXL's C API. Those below zero are errors, which errors.Is finds in the errors of this package.
type Status int32

// The errors of NIXL. ErrBackend has many causes: the peer's process has ended, a plugin refuses parameters, an agent's name is in use
// with other metadata. NIXL writes the cause to standard error only.
const (
	ErrInvalidParam Status = -1
	ErrBackend      Status = -2
	ErrInvalidState Status = -3
	ErrException    Status = -4
	ErrNoTelemetry  Status = -5
	ErrNotFound     Status = -6
)

// The status codes that are no errors.
const (
	success    Status = 0
	inProgress Status = 1
)

var statusNames = map[Status]string{
	ErrInvalidParam: "invalid parameter",
	ErrBackend:      "error of the backend (NIXL writes the cause to standard error)",
	ErrInvalidState: "invalid state",
	ErrException:    "exception in the library",
	ErrNoTelemetry:  "no telemetry",
	ErrNotFound:     "not found",
}

func (s Status) Error() string {
	if name := statusNames[s]; name != "" {
		return name
	}
	return fmt.Sprintf("unknown status %d", int32(s))
}

// check returns an error that names the call, unless the code is a success.
func check(call string, code int32) error {
	if Status(code) == success {
		return nil
	}
	return fmt.Errorf("nixl %s: %w", call, Status(code))
}
