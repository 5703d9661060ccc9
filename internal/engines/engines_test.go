package engines_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// TestLists: the kinds that each list of a message has, in its order. Kinds that are newer than this test may be among them.
func TestLists(t *testing.T) {
	known := []string{"sim", "llamacpp", "vllm", "sglang", "trtllm", "dynamo", "exec"}
	isNew := func(name string) bool { return !slices.Contains(known, name) }
	for _, c := range []struct {
		is   func(*engines.Kind) bool
		want string
	}{
		{(*engines.Kind).IsKind, "sim llamacpp vllm sglang trtllm dynamo exec"},
		{(*engines.Kind).IsLaunched, "sim llamacpp vllm sglang trtllm exec"},
		{(*engines.Kind).RunsInPython, "llamacpp vllm sglang trtllm"},
		{(*engines.Kind).IsPlanned, "sim vllm sglang trtllm"},
		{(*engines.Kind).Transfers, "sim vllm sglang trtllm"},
		{func(k *engines.Kind) bool { return k.AdapterPath != "" }, "sim vllm"},
		{func(k *engines.Kind) bool { return k.VLLMRules }, "sim vllm"},
		{func(k *engines.Kind) bool { return k.Dialect == engines.NoEvents }, "llamacpp"},
	} {
		if got := strings.Join(slices.DeleteFunc(engines.Names(c.is), isNew), " "); got != c.want {
			t.Errorf("kinds %s, want %s", got, c.want)
		}
	}
}

// TestChoices: a message lists the kinds.
func TestChoices(t *testing.T) {
	if got := engines.Choices(func(k *engines.Kind) bool { return k == engines.VLLM || k == engines.SGLang }); got != "vllm or sglang" {
		t.Errorf("choices %s", got)
	}
}

// TestUnknownName: a wrong word is found by Named, and is no kind with the facts of another for Of.
func TestUnknownName(t *testing.T) {
	for _, name := range []string{"", "vlm", "VLLM", "steam"} {
		if k, ok := engines.Named(name); ok || k != nil || engines.Of(name) != engines.Exec {
			t.Errorf("%q is %+v", name, k)
		}
	}
	for _, k := range engines.All() {
		if named, ok := engines.Named(k.Name); !ok || named != k || engines.Of(k.Name) != k {
			t.Errorf("%s is not found by its name", k.Name)
		}
	}
}

// TestHealthPath: a frontend of Dynamo is asked for the model.
func TestHealthPath(t *testing.T) {
	if got := engines.Dynamo.HealthPath("org/m"); got != "/v1/models/org%2Fm/ready" || !fleet.IsReadyPath(got) {
		t.Errorf("path %s", got)
	}
	if got := engines.VLLM.HealthPath("org/m"); got != fleet.DefaultHealthPath {
		t.Errorf("path %s", got)
	}
}

// placeholders are the values that an agent fills into arguments.
var placeholders = []string{
	"path", "model", "aliases", "host", "port", "blockSize", "endpoint", "replay", "file", "role", "transferPort",
}

var placeholder = regexp.MustCompile(`\{([a-zA-Z]+)\}`)

// TestExample: the example of docs/architecture.md is the kind of acme_test.go, which TestFactsAreComplete checks.
func TestExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("acme_test.go")
	if err != nil || !strings.Contains(string(page), "```go\n"+string(example)+"```\n") {
		t.Errorf("docs/architecture.md does not have acme_test.go: %v", err)
	}
}

// TestFactsAreComplete checks every kind: facts that need each other are there together.
func TestFactsAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range append(engines.All(), engines.Acme) {
		is := func(ok bool, text string) {
			if !ok {
				t.Errorf("%s: %s", k.Name, text)
			}
		}
		is(regexp.MustCompile(`^[a-z]+$`).MatchString(k.Name) && !seen[k.Name], "the name must be a word of its own, in lower case")
		seen[k.Name] = true
		is(k.Dialect != 0, "set Dialect, to NoEvents if it publishes none")
		is(k.Pages != 0, "set Pages, to OpenAIPages if it has no others")
		is(!k.Connectors || k.Transfers(), "Connectors need the Transfer that is usual with them")
		is(k.Remedies.Events != "", "Remedies need Events, or the advice to remove kvEvents")
		is(k.Remedies.BlockSize == "" || strings.Count(k.Remedies.BlockSize, "%d") == 1, "Remedies.BlockSize needs one %d")

		m := &k.Metrics
		is(m.Running != "" || reflect.DeepEqual(*m, engines.Metrics{}), "Metrics without Running are not read")
		is((m.Running == "") == (m.Waiting == ""), "Running and Waiting need each other")
		is((m.Queries == "") == (m.Hits == "") && (m.Gaps == "") == (m.GapTime == ""), "counters need each other")
		is((m.Blocks == "") == (m.BlockSize == "") && (m.Drafts == "") == (m.Accepted == ""), "factors need each other")
		is(m.Marker == "" || k.Remedies.Metrics != "", "the doctor finds that metrics are off: Remedies need Metrics")

		is(!k.IsPlanned() || k.IsLaunched() && k.Plan.BlockSize > 0 && k.Plan.Batched != "", "Plan needs Launch, BlockSize and Batched")
		is(k.IsPlanned() || reflect.DeepEqual(k.Plan, engines.Plan{}), "Plan without Seqs is not used")
		is(!k.IsLaunched() || !k.HealthOfModel, "agents ask engines that they start at /health")
		checkLaunch(is, k)
	}
}

// checkLaunch checks how a kind is started.
func checkLaunch(is func(bool, string), k *engines.Kind) {
	l := &k.Launch
	if l.Shape != engines.ByOptions {
		without := engines.Launch{Shape: l.Shape, Module: l.Module}
		is(reflect.DeepEqual(*l, without), "only ByOptions has more than Shape and Module")
		return
	}

	is(l.Module != "" && slices.Contains(l.Args, "{path}"), "Args need {path}, and Module names the package")
	all := strings.Join(append(slices.Clone(l.Args), l.RoleArgs...), " ")
	for _, p := range placeholder.FindAllStringSubmatch(all, -1) {
		is(slices.Contains(placeholders, p[1]), "Args have the unknown "+p[0])
	}
	is(strings.Contains(all, "{host}") && strings.Contains(all, "{port}"), "Args need {host} and {port}")
	is(strings.Contains(all, "{file}") == l.OptionsInFile, "OptionsInFile and {file} need each other")
	is(strings.Contains(all, "{transferPort}") == (k.Transfer == fleet.TransferBootstrap), "a bootstrap server needs {transferPort}")
	for _, args := range [][]string{l.Args, l.RoleArgs} {
		for i, a := range args[min(1, len(args)):] {
			option, isOption := strings.CutPrefix(args[i], "--")
			is(!isOption || !placeholder.MatchString(a) || l.Refused[option] != "", "Refused needs "+option)
		}
	}
	for option, why := range l.Refused {
		is(why != "" && !strings.Contains(option, map[bool]string{true: "-", false: "_"}[l.Underscores]), "Refused."+option)
	}
	for option, shortest := range l.GPUs {
		is(shortest != "" && strings.HasPrefix(option, shortest), "GPUs."+option)
	}
	is(l.SharesGPUs == "" || len(l.Ranks) > 0, "SharesGPUs needs Ranks")
}
