package block

import "testing"

// TestTags: a tag depends on its key, its number and its bytes alone.
func TestTags(t *testing.T) {
	mac := NewMAC([MACKeyBytes]byte{})
	other := NewMAC([MACKeyBytes]byte{1})

	data := make([]byte, 100)
	tag := mac.Tag(7, data)
	if again := mac.Tag(7, data); again != tag {
		t.Errorf("the tags %x and %x of the same bytes differ", tag, again)
	}
	changed := make([]byte, 100)
	changed[99] = 1
	for name, is := range map[string]Tag{
		"another number": mac.Tag(8, data), "other bytes": mac.Tag(7, changed), "another length": mac.Tag(7, data[1:]), "another key": other.Tag(7, data),
	} {
		if is == tag {
			t.Errorf("%s has the same tag", name)
		}
	}
}
