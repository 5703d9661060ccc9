package chattemplate

import (
	"errors"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Template is a parsed template. It is immutable.
type Template struct {
	root []exec
	// slots is the number of variables in the root's frame.
	slots int
	// free are the names that the template reads and never sets. Their values come from the context, else
	// from the globals.
	free []string
	// stored are the names that the template sets outside macros and loops. Until it sets one, the name has
	// the value that the context or the globals give it.
	stored []storedName
	// parts is the result of wantsParts.
	parts bool
	// developer and content report which of these words the source contains.
	developer, content bool
	// generation reports whether the source has the statement of that name, which is not Jinja's own.
	generation bool
}

// KnowsDeveloper reports whether the template handles the role "developer". If not, messages of that
// role get the role "system". The rule is vLLM's: the literal occurs anywhere in the source.
func (t *Template) KnowsDeveloper() bool { return t.developer }

// ReadsContent reports whether the word "content" occurs in the template's source. Without it no final
// message can be continued.
func (t *Template) ReadsContent() bool { return t.content }

// WantsParts reports whether the template iterates over the parts of a message's content. Such a
// template must get lists of parts; any other must get strings.
func (t *Template) WantsParts() bool { return t.parts }

// storedName is a name that the template sets, and its slot in the root's frame.
type storedName struct {
	name string
	slot int
}

// Context is the input of a render.
type Context struct {
	// Vars are the variables. The template reads them and never changes them.
	Vars *Dict
	// Now is the time that strftime_now formats.
	Now time.Time
	// Plain renders as Jinja alone does: without the functions and the statement that Hugging Face adds for chat templates.
	Plain bool
	// Done ends the render with ErrStopped soon after it is closed. A nil Done never ends it.
	Done <-chan struct{}
}

// Limits bound a render. The zero value of a field means its default.
type Limits struct {
	// Steps bounds the work of a render: one step for each statement, call and element, and for each sixteen bytes
	// of new strings. The default is 20 million, which run for about a second.
	Steps int
	// Output bounds the rendered text in bytes; default 64 MiB.
	Output int
	// Calls bounds how deep macros may call one another; default 200.
	Calls int
}

// withDefaults replaces zero and negative fields by their defaults.
func (l Limits) withDefaults() Limits {
	if l.Steps <= 0 {
		l.Steps = 20 << 20
	}
	if l.Output <= 0 {
		l.Output = 64 << 20
	}
	if l.Calls <= 0 {
		l.Calls = 200
	}
	return l
}

// Parse reads the source of a template. An error is an [*Error].
func Parse(source string) (*Template, error) {
	if !utf8.ValidString(source) {
		return nil, &Error{Message: "template is not UTF-8"}
	}
	body, err := parse(source)
	if err != nil {
		return nil, err
	}

	t, err := compileTemplate(body)
	if err != nil {
		return nil, err
	}

	t.parts = wantsParts(body)
	t.developer = strings.Contains(source, `"developer"`) || strings.Contains(source, `'developer'`)
	t.content = strings.Contains(source, "content")
	t.generation = generationTag.MatchString(source)
	return t, nil
}

// generationTag matches the statement generation. A text that looks like one, such as a comment, matches too.
var generationTag = regexp.MustCompile(`\{%[-+]?\s*generation\b`)

// ErrStopped is the error of a render that Context.Done ended.
var ErrStopped = errors.New("render the template: stopped by the caller")

// Render appends the rendered text to dst. If Python would raise or a limit is reached, it
// returns dst as it was and an [*Error], or ErrStopped.
func (t *Template) Render(dst []byte, ctx Context, lim Limits) ([]byte, error) {
	lim = lim.withDefaults()
	if ctx.Plain && t.generation {
		return dst, &Error{Message: "encountered unknown tag 'generation'"}
	}
	r := &run{out: dst, base: len(dst), lim: lim, steps: lim.Steps, now: ctx.Now, vars: ctx.Vars, done: ctx.Done, plain: ctx.Plain}
	r.nextCheck = r.steps

	// One allocation holds the values of the free names and the frame of the template.
	values := make([]Value, len(t.free)+t.slots)
	r.free = values[:len(t.free):len(t.free)]
	for i, name := range t.free {
		r.free[i] = r.resolve(name)
	}

	f := &frame{slots: values[len(t.free):]}
	for _, s := range t.stored {
		f.slots[s.slot] = r.resolve(s.name)
	}

	r.execAll(f, t.root)
	if r.err != nil {
		return dst, r.err
	}
	return r.out, nil
}
