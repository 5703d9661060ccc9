package main

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
)

// wordList has a topic on each line, its commonest words first.
//
//go:embed words.txt
var wordList string

// generate is the text to learn from: prose, code, JSON, shell and logs by simple rules.
func generate() string {
	g := &generator{Rand: rand.New(rand.NewPCG(1, 2))}
	for _, line := range strings.Split(strings.TrimSpace(wordList), "\n") {
		g.topics = append(g.topics, strings.Fields(line))
	}

	var b strings.Builder
	for range 12_000 {
		b.WriteString(g.paragraph())
		if g.IntN(8) == 0 {
			b.WriteString(g.signLine())
		}
	}
	return b.String()
}

type generator struct {
	*rand.Rand
	topics [][]string
}

// word is a word of a topic, the earlier the likelier.
func (g *generator) word(topic int) string {
	words := g.topics[topic%len(g.topics)]
	at := int(float64(len(words)) * g.Float64() * g.Float64())
	return words[at]
}

// anyWord is a word of any topic; half of all words are of the first.
func (g *generator) anyWord() string {
	if g.IntN(2) == 0 {
		return g.word(0)
	}
	return g.word(g.IntN(len(g.topics)))
}

// forms are endings that longer words take.
var forms = []string{"s", "s", "ed", "ing", "er", "ly", "'s"}

func (g *generator) inflected() string {
	w := g.anyWord()
	if g.IntN(5) == 0 && len(w) > 4 {
		w = strings.TrimSuffix(w, "e") + forms[g.IntN(len(forms))]
	}
	return w
}

// number is mostly small.
func (g *generator) number() int {
	f := g.Float64()
	return int(2000 * f * f * f * f)
}

// signLine returns a line of one sign, or white space, as rules and indented code have them.
func (g *generator) signLine() string {
	return strings.Repeat([]string{"=", "-", "#", "*", "^", "~", " ", " ", " ", ".", "\n"}[g.IntN(11)], 1+g.IntN(40)) + "\n"
}

func title(w string) string { return strings.ToUpper(w[:1]) + w[1:] }

func (g *generator) sentence() string {
	n := 4 + g.IntN(14)
	var b strings.Builder
	for i := range n {
		w := g.inflected()
		switch {
		case i == 0:
			w = title(w)
		case g.IntN(40) == 0:
			w = fmt.Sprint(g.number())
		case g.IntN(40) == 0:
			w = "`" + g.identifier() + "`"
		case g.IntN(60) == 0:
			w = title(w)
		case g.IntN(60) == 0:
			w = strings.ToUpper(w)
		case g.IntN(60) == 0:
			w = "(" + w + ")"
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(w)
		if i < n-1 && g.IntN(12) == 0 {
			b.WriteString([]string{",", ";", ":", " -", ","}[g.IntN(5)])
		}
	}

	return b.String() + []string{".", ".", ".", "!", "?", ":"}[g.IntN(6)]
}

func (g *generator) name() string {
	for {
		if w := g.word(2 + g.IntN(len(g.topics)-2)); !strings.ContainsAny(w, "'") {
			return w
		}
	}
}

// identifier is a name as code has them: snake_case, camelCase, CamelCase, dotted.
func (g *generator) identifier() string {
	a, b := strings.ToLower(g.name()), strings.ToLower(g.name())
	return []string{a, a + "_" + b, a + title(b), title(a) + title(b), a + "." + b, a, "_" + a, a + "_" + b, a + "/" + b,
		"__" + a + "__"}[g.IntN(10)]
}

func (g *generator) value() string {
	return []string{`"` + g.identifier() + `"`, fmt.Sprint(g.number()), "true", "false", "null", "None", "[]", "{}", "0", "1",
		`"` + strings.TrimRight(g.sentence(), ".!?:") + `"`, "self." + g.identifier(), g.identifier() + "(" + g.identifier() + ")",
		fmt.Sprintf("%d.%d", g.number()/20, g.number()/20)}[g.IntN(14)]
}

func (g *generator) path() string {
	root := []string{"/usr/lib/", "/home/user/", "./", "src/", "tests/", "/tmp/", "https://example.com/", "/testbed/"}[g.IntN(8)]
	return root + g.name() + "/" + g.identifier() + []string{".py", ".go", ".json", ".md", ".txt", ".yaml", ".js", ".html", ".ts", ".c",
		"/"}[g.IntN(11)]
}

// paragraph is one of the kinds of text that prompts are made of.
func (g *generator) paragraph() string {
	switch g.IntN(14) {
	case 0:
		return g.python()
	case 1:
		return g.golang()
	case 2:
		return g.json(0) + "\n"
	case 3:
		return g.shell()
	case 4:
		return g.trace()
	case 5:
		return g.list()
	case 6:
		return g.markup()
	}

	var b strings.Builder
	for range 2 + g.IntN(5) {
		b.WriteString(g.sentence())
		b.WriteByte(' ')
	}
	return b.String() + "\n\n"
}

func (g *generator) python() string {
	var b strings.Builder
	fmt.Fprintf(&b, "from %s import %s\n\n\nclass %s(%s):\n    \"\"\"%s\"\"\"\n\n", g.identifier(), g.identifier(), title(g.name()),
		title(g.name()), g.sentence())

	for range 1 + g.IntN(3) {
		fmt.Fprintf(&b, "    def %s(self, %s, %s=%s):\n", g.identifier(), g.identifier(), g.identifier(), g.value())
		fmt.Fprintf(&b, "        # %s\n        if %s is not %s:\n            return %s\n", g.sentence(), g.identifier(), g.value(),
			g.value())
		fmt.Fprintf(&b, "        for %s in %s:\n            self.%s = %s\n        raise %s('%s')\n\n", g.identifier(), g.identifier(),
			g.identifier(), g.value(), "ValueError", g.sentence())
	}
	return b.String()
}

func (g *generator) golang() string {
	return fmt.Sprintf("// %s %s\nfunc (%s *%s) %s(ctx context.Context, %s string) (*%s, error) {\n\tif err != nil {\n\t\treturn nil, "+
		"fmt.Errorf(\"%s: %%w\", err)\n\t}\n\t%s := %s\n\tfor i, %s := range %s {\n\t\t%s[i] += %s\n\t}\n\treturn %s, nil\n}\n\n",
		title(g.name()), g.sentence(), g.name()[:1], title(g.name()), title(g.name()), g.name(), title(g.name()), g.name(),
		g.identifier(), g.value(), g.name(), g.identifier(), g.name(), g.value(), g.name())
}

func (g *generator) json(depth int) string {
	var parts []string
	for range 1 + g.IntN(5) {
		v := g.value()
		if depth < 2 && g.IntN(4) == 0 {
			v = g.json(depth + 1)
		}
		key := `"` + strings.ToLower(g.identifier()) + `"`
		parts = append(parts, key+": "+v)
	}

	if g.IntN(2) == 0 {
		return "{" + strings.Join(parts, ", ") + "}"
	}

	in := strings.Repeat("  ", depth+1)
	return "{\n" + in + strings.Join(parts, ",\n"+in) + "\n" + in[2:] + "}"
}

func (g *generator) shell() string {
	return []string{
		fmt.Sprintf("$ grep -rn \"%s\" %s\n%s:%d:    %s = %s\n", g.identifier(), g.path(), g.path(), g.number(), g.identifier(), g.value()),
		fmt.Sprintf("```bash\ncd %s && python %s --%s %s\n```\n\n", g.path(), g.path(), g.name(), g.value()),
		fmt.Sprintf("$ git diff %s\n--- a/%s\n+++ b/%s\n@@ -%d,%d +%d,%d @@\n-    %s = %s\n+    %s = %s\n", g.name(), g.path(), g.path(),
			g.number(), g.number(), g.number(), g.number(), g.identifier(), g.value(), g.identifier(), g.value()),
		fmt.Sprintf("```console\n$ sed -n '%d,%dp' %s\n$ ls -la %s\n```\n", g.number(), g.number(), g.path(), g.path()),
	}[g.IntN(4)]
}

func (g *generator) trace() string {
	var b strings.Builder
	b.WriteString("Traceback (most recent call last):\n")

	for range 2 + g.IntN(4) {
		fmt.Fprintf(&b, "  File \"%s\", line %d, in %s\n    %s(%s, %s=%s)\n", g.path(), g.number(), g.identifier(), g.identifier(),
			g.identifier(), g.name(), g.value())
	}
	fmt.Fprintf(&b, "%sError: %s\n\n2024-%02d-%02d %02d:%02d:%02d,%03d INFO [%s] %s\n", title(g.name()), g.sentence(),
		1+g.IntN(12), 1+g.IntN(28), g.IntN(24), g.IntN(60), g.IntN(60), g.IntN(1000), g.identifier(), g.sentence())
	return b.String()
}

func (g *generator) list() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s %s\n\n", title(g.name()), g.anyWord())
	for i := range 2 + g.IntN(5) {
		mark := []string{"- ", "* ", fmt.Sprintf("%d. ", i+1), "  - ", "- **" + title(g.name()) + "**: "}[g.IntN(5)]
		b.WriteString(mark + g.sentence() + "\n")
	}
	return b.String() + "\n"
}

func (g *generator) markup() string {
	tag := g.name()
	return fmt.Sprintf("<%s>\n%s %s\n</%s>\n<div class=\"%s\"><a href=\"%s\">%s</a></div>\n\n| %s | %s |\n| --- | --- |\n| %s | %s |\n\n",
		tag, g.sentence(), g.sentence(), tag,
		g.identifier(), g.path(), g.anyWord(), g.name(), g.name(), g.value(), g.value())
}

// split cuts the generated text, which is ASCII, as the pattern of the vocabulary does. Go has
// no look-ahead: white space before a word is cut by fix below.
var split = regexp.MustCompile(`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+`)

// pieces counts the pieces of text.
func pieces(text string) map[string]int {
	counts := map[string]int{}
	for text != "" {
		end := split.FindStringIndex(text)[1]
		// A run of white space leaves its last character to what follows it.
		if end > 1 && end < len(text) && strings.TrimLeft(text[:end], " \t") == "" {
			end--
		}
		counts[text[:end]]++
		text = text[end:]
	}

	return counts
}
