package kvevent

import (
	"errors"
	"fmt"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

func (d *dynamoDecoder) eventField(name string) (read bool, err error) {
	switch name {
	case "worker_id":
		d.f.worker, _, err = d.r.integer()
	case "storage_tier":
		d.f.tier, err = d.r.text()
	case "residency_domain":
		if d.r.kind() != kindText {
			d.f.foreign = true
			return false, nil
		}
		var domain []byte
		domain, err = d.r.text()
		d.f.foreign = string(domain) != "worker"
	case "event":
		err = d.each(cacheEventOrder, (*dynamoDecoder).eventField)
	case "event_id":
		d.f.id, _, err = d.r.integer()
		d.f.present |= hasID
	case "dp_rank":
		var n uint64
		n, _, err = d.r.integer()
		if err == nil && n > maxRank {
			err = fmt.Errorf("%d is out of range", n)
		}
		d.f.rank = int(n)
	case "data":
		err = d.data()
	default:
		return false, nil
	}
	return true, err
}

// data reads a word, or a structure whose one field is named by what happened.
func (d *dynamoDecoder) data() error {
	if d.r.kind() == kindText {
		word, err := d.r.text()
		d.f.kind = "unknown"
		if string(word) == "cleared" {
			d.f.kind = "cleared"
		}
		return err
	}
	if err := d.r.fields(); err != nil {
		return err
	}
	return d.rest(nil, (*dynamoDecoder).dataField)
}

func (d *dynamoDecoder) dataField(name string) (read bool, err error) {
	switch name {
	case "stored":
		d.f.kind = "stored"
		return true, d.each(storeOrder, (*dynamoDecoder).storeField)
	case "removed":
		d.f.kind = "removed"
		return true, d.each(removeOrder, (*dynamoDecoder).removeField)
	case "cleared":
		d.f.kind = "cleared"
	default:
		d.f.kind = "unknown"
	}
	return false, nil
}

func (d *dynamoDecoder) storeField(name string) (read bool, err error) {
	switch name {
	case "parent_hash":
		d.f.parent, err = hashOf(d.r)
		d.f.hasParent = true
	case "blocks":
		d.b.hashes, d.b.blocks = d.b.hashes[:d.f.hashes], d.b.blocks[:d.f.blocks] // of a repeated key the last one counts
		d.f.contentKnown = 0
		err = d.eachOf((*dynamoDecoder).storedBlock)
	default:
		return false, nil
	}
	return true, err
}

func (d *dynamoDecoder) removeField(name string) (read bool, err error) {
	if name != "block_hashes" {
		return false, nil
	}
	d.b.hashes = d.b.hashes[:d.f.hashes]
	return true, d.eachOf((*dynamoDecoder).removedHash)
}

func (d *dynamoDecoder) eachOf(element func(d *dynamoDecoder) error) error {
	return elements(d.r, d, func(d *dynamoDecoder) error {
		d.blocks++
		if d.blocks > d.lim.Blocks {
			return fmt.Errorf("more than %d blocks", d.lim.Blocks)
		}
		return element(d)
	})
}

func (d *dynamoDecoder) storedBlock() error {
	d.f.present &^= hasHash | hasContent
	if err := d.each(storedBlockOrder, (*dynamoDecoder).blockField); err != nil {
		return err
	}
	if d.f.present&hasHash == 0 {
		return errors.New("a block without block_hash")
	}
	d.b.hashes = append(d.b.hashes, EngineHash(d.f.hash))
	d.b.blocks = append(d.b.blocks, blockhash.Block(d.f.content))
	if d.f.present&hasContent != 0 {
		d.f.contentKnown++
	}
	return nil
}

func (d *dynamoDecoder) blockField(name string) (read bool, err error) {
	var h EngineHash
	switch name {
	case "block_hash":
		h, err = hashOf(d.r)
		d.f.hash, d.f.present = uint64(h), d.f.present|hasHash
	case "tokens_hash":
		h, err = hashOf(d.r)
		d.f.content, d.f.present = uint64(h), d.f.present|hasContent
	default:
		return false, nil
	}
	return true, err
}

func (d *dynamoDecoder) removedHash() error {
	h, err := hashOf(d.r)
	d.b.hashes = append(d.b.hashes, h)
	return err
}

// finish turns the fields of one event into an event.
func (d *dynamoDecoder) finish() error {
	b, f := d.b, &d.f
	hashes, blocks := b.hashes[f.hashes:len(b.hashes):len(b.hashes)], b.blocks[f.blocks:len(b.blocks):len(b.blocks)]
	mine, err := b.accepts(f.worker, f.rank)
	if err != nil {
		return err
	}
	if mine && f.present&hasID != 0 {
		b.addNumber(f.id)
	}

	tier, known := dynamoTier(f.tier)
	switch {
	case !mine:
	case f.kind == "" || f.kind == "unknown":
		b.Unknown++
	case f.foreign || !known:
		b.Skipped++
	case f.kind == "cleared":
		b.addCleared()
	case f.kind == "removed":
		b.Events = append(b.Events, Event{Kind: Removed, Tier: tier, Hashes: hashes})
		return nil
	default:
		if f.contentKnown != len(hashes) {
			blocks = nil
		}
		b.Events = append(b.Events, Event{Kind: Stored, Tier: tier, Hashes: hashes, Parent: f.parent, HasParent: f.hasParent,
			Blocks: blocks})
		return nil
	}

	b.hashes, b.blocks = b.hashes[:f.hashes], b.blocks[:f.blocks]
	return nil
}

func dynamoTier(name []byte) (t fleet.Tier, known bool) {
	switch string(name) {
	case "", "device", "Device":
		return fleet.Device, true
	case "host_pinned", "HostPinned":
		return fleet.Host, true
	case "disk", "Disk":
		return fleet.Disk, true
	case "external", "External":
		return fleet.External, true
	}
	return 0, false
}
