package chattemplate_test

import (
	"fmt"

	"github.com/stator-project/stator/internal/prompt/chattemplate"
)

func ExampleTemplate_Render() {
	template, err := chattemplate.Parse(`{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}`)
	if err != nil {
		fmt.Println(err)
		return
	}
	variables, err := chattemplate.FromJSON([]byte(`{"messages": [{"role": "user", "content": " hi "}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}

	text, err := template.Render(nil, chattemplate.Context{Vars: variables.Dict()}, chattemplate.Limits{})

	fmt.Printf("%s %v\n", text, err)
	// Output:
	// <user>hi <nil>
}
