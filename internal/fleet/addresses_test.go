package fleet

import "testing"

// TestAddresses: a set has the addresses of its texts and no others. Texts that are none are refused.
func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		text     string
		has, not []string
	}{
		{"10.0.0.7:8000", []string{"10.0.0.7:8000", "[::ffff:10.0.0.7]:8000"}, []string{"10.0.0.7:8001", "10.0.0.8:8000", "name:8000", ""}},
		{"10.0.0.7", []string{"10.0.0.7:1", "10.0.0.7:65535"}, []string{"10.0.0.8:1"}},
		{"10.1.2.3/8", []string{"10.9.9.9:80"}, []string{"11.0.0.1:80", "[::1]:80"}},
		{":8000", []string{"10.0.0.7:8000", "[::1]:8000"}, []string{"10.0.0.7:80"}},
		{":8000-8099", []string{"1.1.1.1:8000", "1.1.1.1:8099"}, []string{"1.1.1.1:7999", "1.1.1.1:8100"}},
		{"10.0.0.0/8:80-90", []string{"10.1.1.1:80"}, []string{"10.1.1.1:91", "11.1.1.1:80"}},
		{"[fd00::1]:80", []string{"[fd00::1]:80"}, []string{"[fd00::2]:80", "[fd00::1]:81"}},
		{"fe80::1", []string{"[fe80::1]:80", "[fe80::1%eth0]:80"}, []string{"[fe80::2]:80"}},
		{"fd00::/8", []string{"[fd12::1]:80"}, []string{"10.0.0.1:80"}},
	} {
		set, err := ParseAddresses([]string{"9.9.9.9:9", c.text})
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
		for _, address := range c.has {
			if !set.Has(address) {
				t.Errorf("%s lacks %s", c.text, address)
			}
		}
		for _, address := range c.not {
			if set.Has(address) {
				t.Errorf("%s has %s", c.text, address)
			}
		}
	}
	for _, text := range []string{"", ":", ":0", ":70000", ":9-8", ":8-", "name:80", "name", "10.0.0.0/33", "10.0.0.1:x", "fd00::1:x"} {
		if set, err := ParseAddresses([]string{text}); err == nil {
			t.Errorf("%q is %v", text, set)
		}
	}
	if Addresses(nil).Has("10.0.0.1:80") {
		t.Error("the empty set has an address")
	}
}

// FuzzAddresses: no text breaks the parser, and a set that a text makes has an answer for every address.
func FuzzAddresses(f *testing.F) {
	f.Add("10.0.0.0/8:80-90", "10.0.0.1:80")
	f.Add("[fd00::1]:80", "[fe80::1%eth0]:80")
	f.Fuzz(func(_ *testing.T, text, address string) {
		if set, err := ParseAddresses([]string{text}); err == nil {
			set.Has(address)
		}
	})
}
