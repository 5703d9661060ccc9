package stator_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityTable: each row of the table of docs/security.md names tests, and all of them exist.
func TestSecurityTable(t *testing.T) {
	table := sectionOf(t, "docs/security.md", "Who can do what")
	exists := namesOfTests(t)
	test := regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	rows := 0
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| Who ") {
			if strings.HasPrefix(line, "|") && len(cells) != 6 {
				t.Errorf("a row has %d cells: %s", len(cells)-2, line)
			}
			continue
		}
		rows++
		named := test.FindAllStringSubmatch(cells[4], -1)
		if len(named) == 0 {
			t.Errorf("no test proves: %s", line)
		}
		for _, name := range named {
			if !exists[name[1]] {
				t.Errorf("%s does not exist; the row is: %s", name[1], line)
			}
		}
	}
	if rows == 0 {
		t.Error("the table has no rows")
	}
}

// namesOfTests returns the names of all tests of the repository.
func namesOfTests(t *testing.T) map[string]bool {
	t.Helper()
	files, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
	for _, path := range strings.Fields(string(files)) {
		source, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // it is removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range function.FindAllSubmatch(source, -1) {
			names[string(name[1])] = true
		}
	}
	return names
}
