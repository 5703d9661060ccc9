package chattemplate

import "errors"

// Template is a parsed template.
type Template struct{}

// Parse reads the source of a template.
func Parse(source string) (*Template, error) {
	return nil, errors.New("parse chat template: not supported yet")
}
