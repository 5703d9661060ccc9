package fleet

import (
	"regexp"
	"strconv"
	"strings"
)

// hostName matches the names of hosts. One whose last part has no letter is a mistyped IP address.
var hostName = regexp.MustCompile(`^([a-zA-Z0-9_]([a-zA-Z0-9_-]*[a-zA-Z0-9_])?\.)*[a-zA-Z]([a-zA-Z0-9-]*[a-zA-Z0-9])?\.?$`)

// maxHostName bounds the bytes of a DNS name, as DNS does.
const maxHostName = 253

// SplitName divides name:port. ok is false if the host is no DNS name, as for an IP, or the port is not 1 to 65535.
func SplitName(address string) (name string, port uint16, ok bool) {
	name, text, _ := strings.Cut(address, ":")
	n, err := strconv.ParseUint(text, 10, 16)
	ok = err == nil && n > 0 && len(name) <= maxHostName && hostName.MatchString(name)
	return name, uint16(n), ok
}
