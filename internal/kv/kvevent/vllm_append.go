package kvevent

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/fleet"
)

var vllmMedium = [fleet.Tiers]string{"GPU", "CPU", "STORAGE", "EXTERNAL"}

// AppendVLLM appends to dst the message that vLLM would publish for events: its map form,
// field by field in its order, with hashes as numbers. Tiers and kinds must be valid.
func AppendVLLM(dst []byte, seconds float64, rank int, events []Raw) []byte {
	dst = msgp.AppendArrayHeader(dst, 3)
	dst = msgp.AppendFloat64(dst, seconds)
	dst = msgp.AppendArrayHeader(dst, uint32(len(events)))
	for i := range events {
		switch e := &events[i]; e.Kind {
		case Stored:
			dst = appendStored(dst, e)
		case Removed:
			dst = appendRemoved(dst, e)
		default:
			dst = msgp.AppendMapHeader(dst, 1)
			dst = appendPair(dst, "type", "AllBlocksCleared")
		}
	}
	return msgp.AppendInt(dst, rank)
}

// appendStored omits what vLLM omits: extra_keys on slower tiers, locality if it is not the local
// disk, an empty session.
func appendStored(dst []byte, e *Raw) []byte {
	fields := uint32(10)
	for _, more := range []bool{e.Tier == fleet.Device, e.Tier == fleet.Disk, e.Session != ""} {
		if more {
			fields++
		}
	}

	dst = msgp.AppendMapHeader(dst, fields)
	dst = appendPair(dst, "type", "BlockStored")
	dst = appendHashes(dst, e.Hashes)
	dst = msgp.AppendString(dst, "parent_block_hash")
	if e.HasParent {
		dst = msgp.AppendUint64(dst, uint64(e.Parent))
	} else {
		dst = msgp.AppendNil(dst)
	}

	dst = appendTokens(dst, e.Tokens)
	dst = msgp.AppendString(dst, "block_size")
	dst = msgp.AppendInt(dst, e.BlockSize)
	dst = msgp.AppendString(dst, "lora_id")
	if e.LoRA != "" {
		dst = msgp.AppendInt(dst, e.LoRAID)
	} else {
		dst = msgp.AppendNil(dst)
	}
	dst = appendPair(dst, "medium", vllmMedium[e.Tier])
	dst = msgp.AppendString(dst, "lora_name")
	if e.LoRA != "" {
		dst = msgp.AppendString(dst, e.LoRA)
	} else {
		dst = msgp.AppendNil(dst)
	}

	if e.Tier == fleet.Device {
		dst = appendExtraKeys(dst, e)
	}
	dst = msgp.AppendString(dst, "group_idx")
	dst = msgp.AppendInt(dst, 0)
	dst = appendPair(dst, "kv_cache_spec_kind", "full_attention")
	if e.Tier == fleet.Disk {
		dst = appendPair(dst, "locality", "LOCAL")
	}
	if e.Session != "" {
		dst = appendPair(dst, "session_id", e.Session)
	}
	return dst
}

func appendRemoved(dst []byte, e *Raw) []byte {
	dst = msgp.AppendMapHeader(dst, 4)
	dst = appendPair(dst, "type", "BlockRemoved")
	dst = appendHashes(dst, e.Hashes)
	dst = appendPair(dst, "medium", vllmMedium[e.Tier])
	dst = msgp.AppendString(dst, "group_idx")
	return msgp.AppendInt(dst, 0)
}

// appendExtraKeys writes for each block null or [lora?, salt?]: the salt stands with the
// first block of a prompt only.
func appendExtraKeys(dst []byte, e *Raw) []byte {
	dst = msgp.AppendString(dst, "extra_keys")
	dst = msgp.AppendArrayHeader(dst, uint32(len(e.Hashes)))
	for i := range e.Hashes {
		salted := i == 0 && !e.HasParent && e.Salt != ""
		switch {
		case e.LoRA != "" && salted:
			dst = msgp.AppendArrayHeader(dst, 2)
			dst = msgp.AppendString(dst, e.LoRA)
			dst = msgp.AppendString(dst, e.Salt)
		case e.LoRA != "":
			dst = msgp.AppendArrayHeader(dst, 1)
			dst = msgp.AppendString(dst, e.LoRA)
		case salted:
			dst = msgp.AppendArrayHeader(dst, 1)
			dst = msgp.AppendString(dst, e.Salt)
		default:
			dst = msgp.AppendNil(dst)
		}
	}
	return dst
}

func appendHashes(dst []byte, hashes []EngineHash) []byte {
	dst = msgp.AppendString(dst, "block_hashes")
	dst = msgp.AppendArrayHeader(dst, uint32(len(hashes)))
	for _, h := range hashes {
		dst = msgp.AppendUint64(dst, uint64(h))
	}
	return dst
}

func appendTokens(dst []byte, tokens []uint32) []byte {
	dst = msgp.AppendString(dst, "token_ids")
	dst = msgp.AppendArrayHeader(dst, uint32(len(tokens)))
	for _, t := range tokens {
		dst = msgp.AppendUint32(dst, t)
	}
	return dst
}

func appendPair(dst []byte, key, value string) []byte {
	return msgp.AppendString(msgp.AppendString(dst, key), value)
}
