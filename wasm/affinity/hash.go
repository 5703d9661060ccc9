package affinity

// hash is a running hash: FNV-1a with 64 bits. It is fast enough for the beginning of a prompt, and needs no table.
// Envoy hashes the key again, so collisions are all that it must avoid.
type hash uint64

// fnvPrime is the prime of FNV-1a with 64 bits. The hash begins at 0, because no text begins with a zero byte.
const fnvPrime = 1099511628211

// add adds bytes.
func (h hash) add(bytes []byte) hash {
	for _, c := range bytes {
		h = (h ^ hash(c)) * fnvPrime
	}
	return h
}

// join adds another hash. The order matters.
func (h hash) join(other hash) hash {
	for range 8 {
		h = (h ^ other&0xff) * fnvPrime
		other >>= 8
	}
	return h
}

// hex returns the hash as 16 hexadecimal digits.
func (h hash) hex() string {
	const digits = "0123456789abcdef"
	var text [16]byte
	for i := range text {
		text[len(text)-1-i] = digits[h&0xf]
		h >>= 4
	}
	return string(text[:])
}
