package route

import (
	"encoding/binary"
	"encoding/hex"
	"hash/maphash"
	"sync/atomic"
)

// ids makes the ids of decisions.
type ids struct {
	replica string // the name of this router; empty if it is the only one
	seed    uint64
	last    atomic.Uint64
	hash    maphash.Seed // of the ids for requests of an Envoy
}

func (i *ids) init(replica string, seed uint64) {
	i.replica, i.seed = replica, seed
	i.hash = maphash.MakeSeed()
}

// next returns a fresh id. It ends in 16 hex digits: a counter that starts at the seed, mixed by a bijection. So ids of one
// router never repeat, and ids of two routers are equal only by chance.
func (i *ids) next() string {
	x := i.seed + i.last.Add(1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return i.text(x ^ x>>31)
}

// of returns the id for a request of one Envoy that has this request id: always the same one, and one that clients cannot guess.
func (i *ids) of(source, requestID string) string {
	return i.text(maphash.Comparable(i.hash, [2]string{source, requestID}))
}

// text returns the id with that number: its digits, after the name of this router if there are several routers.
func (i *ids) text(number uint64) string {
	var raw [8]byte
	var text [16]byte
	binary.BigEndian.PutUint64(raw[:], number)
	hex.Encode(text[:], raw[:])
	if i.replica == "" {
		return string(text[:])
	}
	return i.replica + "-" + string(text[:])
}
