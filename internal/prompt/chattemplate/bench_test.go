package chattemplate

import (
	"fmt"
	"io/fs"
	"testing"

	"github.com/stator-project/stator/internal/models"
)

// BenchmarkRender measures the rendering of a chat, without tokenization.
//
//	go test -run - -bench Render -count 6 ./internal/prompt/chattemplate | benchstat -col /messages -
func BenchmarkRender(b *testing.B) {
	src, err := fs.ReadFile(models.Sim(), "chat_template.jinja")
	if err != nil {
		b.Fatal(err)
	}
	tmpl, err := Parse(string(src))
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{2, 20, 200} {
		var messages []Value
		for i := range n {
			d := NewDict(2)
			d.Set("role", StringValue([]string{"user", "assistant"}[i%2]))
			d.Set("content", StringValue("Some text of the length that a short turn of a conversation has, as people write it."))
			messages = append(messages, DictValue(d))
		}
		vars := NewDict(2)
		vars.Set("messages", ListValue(messages))
		vars.Set("add_generation_prompt", BoolValue(true))
		b.Run(fmt.Sprintf("messages=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			var out []byte
			for b.Loop() {
				if out, err = tmpl.Render(out[:0], Context{Vars: vars}, Limits{}); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(out)))
		})
	}
}
