package object

import (
	"context"
	"strings"
	"time"
)

// sweep compares the catalog with the store, and deletes packs that are too old or exceed the bound on bytes. An error ends it until the
// next sweep.
func (t *Tier) sweep(ctx context.Context) {
	oldest := time.Now().Add(-t.cfg.MaxAge)
	var kept int64
	after := ""
	err := t.eachPage(ctx, "i/", func(page []Object, more bool) error {
		names := map[string]bool{}
		for _, o := range page {
			name, size := t.ownPack(o, "i/")
			names[strings.TrimPrefix(o.Name, t.base+"i/")] = true
			if size > 0 && !name.made.Before(oldest) {
				kept += size
			}
		}

		// A pack that was published while the list was made is newer than its last name.
		upTo := strings.TrimPrefix(page[len(page)-1].Name, t.base+"i/")
		t.catalog.keep(after, upTo, names)
		after = upTo
		return nil
	})
	if err != nil {
		return
	}

	tooMuch := int64(0)
	if t.cfg.MaxBytes > 0 {
		tooMuch = kept - t.cfg.MaxBytes
	}
	if t.deleteOld(ctx, "i/", oldest, tooMuch) == nil {
		// Packs without an index are left by processes that ended between the two writes.
		_ = t.deleteOld(ctx, "p/", oldest.Add(-time.Hour), 0)
	}
}

// eachPage calls f for each page of the objects of a kind.
func (t *Tier) eachPage(ctx context.Context, kind string, f func(page []Object, more bool) error) error {
	after := ""
	for more := true; more; {
		page, next, err := t.list(ctx, t.base+kind, after)
		if err != nil || len(page) == 0 {
			return err
		}
		if err := f(page, next); err != nil {
			return err
		}
		after = page[len(page)-1].Name
		more = next
	}
	return nil
}

// ownPack returns the name of an object that this node may delete, and the size of its pack in bytes, or 0 if it may not.
func (t *Tier) ownPack(o Object, kind string) (name packName, size int64) {
	name, ok := parseName(strings.TrimPrefix(o.Name, t.base+kind))
	if !ok || name.node != t.cfg.Node && !t.cfg.DeleteOthers {
		return name, 0
	}
	if kind == "p/" {
		return name, o.Size
	}
	return name, int64(entriesOf(o.Size)) * int64(t.cfg.BlockBytes)
}

// deleteOld deletes packs that were made before a time, and after those the oldest while tooMuch bytes are left.
func (t *Tier) deleteOld(ctx context.Context, kind string, oldest time.Time, tooMuch int64) error {
	return t.eachPage(ctx, kind, func(page []Object, _ bool) error {
		for _, o := range page {
			name, size := t.ownPack(o, kind)
			isOld := name.made.Before(oldest)
			if size == 0 || !isOld && tooMuch <= 0 {
				continue
			}
			if !isOld {
				tooMuch -= size
			}
			if err := t.deletePack(ctx, name.text); err != nil {
				return err
			}
		}
		return nil
	})
}

// deletePack deletes the index first, so that no reader learns of a pack that is going.
func (t *Tier) deletePack(ctx context.Context, name string) error {
	for _, kind := range []string{"i/", "p/"} {
		err := t.request(ctx, func(ctx context.Context) error {
			return t.cfg.Bucket.Delete(ctx, t.base+kind+name)
		})
		if err != nil {
			return err
		}
	}
	t.catalog.remove(name)
	return nil
}
