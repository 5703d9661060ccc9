// Package chattemplate renders chat templates: the part of Jinja that they use, with the results that
// Python would give.
//
// [Parse] compiles a template into closures once, and [Template.Render] renders it often. Values behave
// like Python's wherever a template can see the difference: dicts keep their order, integers are not floats,
// and missing values are undefined. The package has no autoescape, no inheritance and no include,
// because chat templates have none.
//
// Templates and contexts come from outside: steps, output and depth are bounded, nothing
// panics. A [Template] is immutable and safe for concurrent use.
package chattemplate
