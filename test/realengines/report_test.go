package main

import "testing"

// TestMerge: a run of some sections replaces these in an earlier report.
func TestMerge(t *testing.T) {
	earlier := "# Title\n\n## A\n\nold a\n\n## B\n\nold b\n"
	for _, c := range []struct{ earlier, now, want string }{
		{"", "# Title\n\n## A\n\nnew\n", "# Title\n\n## A\n\nnew\n"},
		{earlier, "# Title\n\n## B\n\nnew b\n\n", "# Title\n\n## A\n\nold a\n\n## B\n\nnew b\n"},
		{earlier, "# Title\n\n## C\n\nnew c\n", earlier + "\n## C\n\nnew c\n"},
	} {
		if got := merge(c.earlier, c.now); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}
