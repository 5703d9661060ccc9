// Package chattemplate renders chat templates: Jinja as they use it, with Python's answers.
//
// A template is parsed once into closures ([Parse]) and rendered often ([Template.Render]).
// Values are Python's where a template can tell: dicts keep their order, integers are not
// floats, missing things are undefined. It is not a general Jinja: there is no autoescape, no
// inheritance and no include, because chat templates have none.
//
// Templates and contexts come from outside: steps, output and depth are bounded, nothing
// panics. A [Template] is immutable and safe for concurrent use.
package chattemplate
