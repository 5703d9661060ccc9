package kvevent

import (
	"fmt"
	"math"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

func (d *trtDecoder) storedField(name string) (read bool, err error) {
	switch name {
	case "parent_hash":
		d.f.parent, err = hashOf(d.r)
		d.f.hasParent = true
	case "blocks":
		err = elements(d.r, d, (*trtDecoder).block)
	default:
		return d.identity(name)
	}
	return true, err
}

// identity reads the fields on which a chain's content depends beside its tokens. TensorRT-LLM reports them
// with the event or with each block.
func (d *trtDecoder) identity(name string) (read bool, err error) {
	switch name {
	case "lora_name":
		d.f.lora, err = d.r.text()
	case "lora_id":
		raw, s := d.r.raw, d.r.scratch
		_, _, err = d.r.integer()
		if err == nil {
			d.r.scratch = append(append(s, 0), raw[:len(raw)-len(d.r.raw)]...)
			d.f.loraID = d.r.scratch[len(s):]
		}
	case "cache_salt":
		d.f.salt, err = d.r.text()
	default:
		return false, nil
	}
	return true, err
}

func (d *trtDecoder) block() error {
	d.blocks++
	if d.blocks > d.lim.Blocks {
		return fmt.Errorf("more than %d blocks", d.lim.Blocks)
	}
	m := &d.b.memory.trt
	m.blocks = append(m.blocks, trtBlock{})
	return d.each((*trtDecoder).blockField)
}

func (d *trtDecoder) blockField(name string) (read bool, err error) {
	m := &d.b.memory.trt
	k := &m.blocks[len(m.blocks)-1]
	switch name {
	case "block_hash":
		k.hash, err = hashOf(d.r)
	case "tokens":
		// Of a repeated list the last one counts.
		d.b.tokens, k.tokens = d.b.tokens[:len(d.b.tokens)-k.tokens], 0
		err = elements(d.r, d, (*trtDecoder).token)
	case "cache_level":
		k.level, err = d.level()
	case "mm_keys":
		err = elements(d.r, d, (*trtDecoder).media)
	default:
		return d.identity(name)
	}
	return true, err
}

func (d *trtDecoder) level() (int, error) {
	n, err := d.bounded(7)
	return int(n), err
}

func (d *trtDecoder) token() error {
	d.tokens++
	if d.tokens > d.lim.Tokens {
		return fmt.Errorf("more than %d tokens", d.lim.Tokens)
	}
	m := &d.b.memory.trt
	m.blocks[len(m.blocks)-1].tokens++
	d.b.tokens = append(d.b.tokens, 0)
	if d.r.kind() == kindNumber {
		return d.tokenID()
	}
	return d.each((*trtDecoder).tokenField)
}

func (d *trtDecoder) tokenField(name string) (read bool, err error) {
	switch name {
	case "token_id":
		return true, d.tokenID()
	case "token_extra_id":
		// Tokens of a prompt table, or of media: the same id is not the same content.
		extra, _, err := d.r.integer()
		if err == nil && extra != 0 {
			d.addWord(extra)
		}
		return true, err
	}
	return false, nil
}

func (d *trtDecoder) tokenID() error {
	id, err := d.bounded(math.MaxUint32)
	d.b.tokens[len(d.b.tokens)-1] = uint32(id)
	return err
}

func (d *trtDecoder) addWord(hash uint64) {
	d.b.memory.extra.addKey(len(d.b.memory.trt.blocks)-1, hash)
}

// media reads {"type": "mm_key", "hash": hexadecimal, "start_offset": n}.
func (d *trtDecoder) media() error {
	return d.each(func(d *trtDecoder, name string) (bool, error) {
		if name != "hash" {
			return false, nil
		}
		digest, err := d.r.text()
		if err == nil && len(digest) > 0 {
			d.addWord(blockhash.MediaHash(text(digest)))
		}
		return true, err
	})
}

func (d *trtDecoder) removedField(name string) (read bool, err error) {
	if name != "block_hashes" {
		return false, nil
	}
	d.b.hashes = d.b.hashes[:d.f.hashes]
	return true, elements(d.r, d, (*trtDecoder).removedHash)
}

func (d *trtDecoder) removedHash() error {
	if d.r.kind() == kindNull {
		return d.r.skip()
	}
	d.blocks++
	if d.blocks > d.lim.Blocks {
		return fmt.Errorf("more than %d blocks", d.lim.Blocks)
	}
	h, err := hashOf(d.r)
	d.b.hashes = append(d.b.hashes, h)
	return err
}

func (d *trtDecoder) updatedField(name string) (read bool, err error) {
	switch name {
	case "block_hash":
		var h EngineHash
		h, err = hashOf(d.r)
		d.b.hashes = append(d.b.hashes[:d.f.hashes], h)
	case "cache_level":
		err = d.each((*trtDecoder).levelField)
	default:
		return false, nil
	}
	return true, err
}

func (d *trtDecoder) levelField(name string) (read bool, err error) {
	switch name {
	case "old_value":
		d.f.from, err = d.level()
	case "new_value":
		d.f.to, err = d.level()
	default:
		return false, nil
	}
	return true, err
}

func (d *trtDecoder) bounded(limit uint64) (uint64, error) {
	n, negative, err := d.r.integer()
	if err == nil && (negative || n > limit) {
		return 0, fmt.Errorf("%d is out of range", int64(n))
	}
	return n, err
}
