package handoff

import (
	"strconv"
	"time"
)

// AppendPin appends, after a comma, the member of a body by which StatorConnector in vLLM pins the blocks of the prompt in the store of KV
// blocks, in whole seconds. A transfer or a pull replaces it. Strip removes such members of clients.
func AppendPin(members []byte, ttl time.Duration) []byte {
	members = append(members, `,"`+params+`":{"stator_pin_seconds":`...)
	members = strconv.AppendInt(members, int64(ttl/time.Second), 10)
	return append(members, '}')
}
