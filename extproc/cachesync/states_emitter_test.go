package cachesync

import (
	"encoding/binary"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// The emitter of the model: a node of the tree is a chunk of chunkSize tokens, which is several blocks of the router.

const chunkSize = 4 * modelSize

// chunkTokens are the tokens of a node's chunk.
func chunkTokens(node int) []uint32 { return slices.Repeat([]uint32{uint32(node + 1)}, chunkSize) }

// decoded returns the batch of a message as the source of an emitter decodes it: each chunk is an event of its own.
func (s *sourceModel) decoded(b *kvevent.Batch) *kvevent.Batch {
	if !s.engine.chunks || b.Unknown > 0 {
		return b
	}
	events, n := []byte(nil), uint32(0)
	for _, e := range b.Events {
		switch e.Kind {
		case kvevent.Stored:
			for i := range e.Hashes {
				events = appendChunk(events, e.Hashes, i)
				n++
			}
		case kvevent.Removed:
			events = msgp.AppendString(msgp.AppendArrayHeader(events, 3), "BlockRemoved")
			events = appendDigest(msgp.AppendArrayHeader(events, 1), e.Hashes[0])
			events = msgp.AppendString(events, medium)
			n++
		case kvevent.Cleared:
			events = msgp.AppendString(msgp.AppendArrayHeader(events, 1), "AllBlocksCleared")
			n++
		}
	}
	message := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), b.Seconds)
	message = append(msgp.AppendArrayHeader(message, n), events...)
	if err := kvevent.Outside.Decode(msgp.AppendNil(message), kvevent.Limits{}, &s.decoder); err != nil {
		panic(err)
	}
	for i := range s.decoder.Events {
		s.decoder.Events[i].Tier = fleet.Device // IsReported answers for this tier
	}
	return &s.decoder
}

const medium = "lmcache-l2-fs"

// appendChunk appends the event of a chunk of a prompt.
func appendChunk(dst []byte, hashes []kvevent.EngineHash, i int) []byte {
	dst = msgp.AppendString(msgp.AppendArrayHeader(dst, 7), "BlockStored")
	dst = appendDigest(msgp.AppendArrayHeader(dst, 1), hashes[i])
	if i > 0 {
		dst = appendDigest(dst, hashes[i-1])
	} else {
		dst = msgp.AppendNil(dst)
	}
	dst = msgp.AppendArrayHeader(dst, chunkSize)
	for _, token := range chunkTokens(int(hashes[i]) - 1) {
		dst = msgp.AppendUint32(dst, token)
	}
	dst = msgp.AppendNil(msgp.AppendInt(dst, chunkSize))
	return msgp.AppendString(dst, medium)
}

func appendDigest(dst []byte, h kvevent.EngineHash) []byte {
	return msgp.AppendBytes(dst, binary.BigEndian.AppendUint64(make([]byte, 24), uint64(h)))
}

// indexedChunks returns the chunks of the emitter in the router's index. A chunk of which a part is there is an error.
func (h *history) indexedChunks(id fleet.RankID) cacheSet {
	var set cacheSet
	parts := chunkSize / h.size
	for leaf := range 27 {
		var tokens []uint32
		nodes := path(leaf)
		for _, node := range nodes {
			tokens = append(tokens, chunkTokens(node)...)
		}
		chain := blockhash.Chain(nil, blockhash.Append(nil, tokens, h.size, blockhash.Seed("", "")))
		for i, node := range nodes {
			n := 0
			for _, seq := range chain[i*parts : (i+1)*parts] {
				if h.index.IsReported(id, seq) {
					n++
				}
			}
			if n == parts {
				set |= 1 << node
			} else if n > 0 {
				h.t.Errorf("%d of %d parts of chunk %d are in the index", n, parts, node)
			}
		}
	}
	return set
}
