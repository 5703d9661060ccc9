package hub

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// prefix begins the paths of models on a hub.
const prefix = "hf:"

// MainRevision is the revision of a reference without one.
const MainRevision = "main"

// Ref names a model on a hub.
type Ref struct {
	// Org and Model are the two parts of the repository's name.
	Org, Model string
	// Revision is a branch, a tag or a commit; never empty.
	Revision string
}

// IsRef reports whether a path names a model on a hub, well or badly written.
func IsRef(path string) bool { return strings.HasPrefix(path, prefix) }

var (
	// namePattern is the rule of the hub for each part of a repository's name, as far as it keeps a name from being a path.
	namePattern = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?$`)
	// revisionPattern allows the names of branches and tags that are also safe as paths, such as refs/pr/1.
	revisionPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$`)
	commitPattern   = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// maxRevision bounds a revision in bytes.
const maxRevision = 200

// ParseRef parses hf:ORG/MODEL or hf:ORG/MODEL@REVISION.
func ParseRef(path string) (Ref, error) {
	text, ok := strings.CutPrefix(path, prefix)
	if !ok {
		return Ref{}, fmt.Errorf("a model on a hub begins with %s", prefix)
	}

	name, revision, given := strings.Cut(text, "@")
	if !given {
		revision = MainRevision
	}
	org, model, _ := strings.Cut(name, "/")
	if !validName(org) || !validName(model) {
		return Ref{}, fmt.Errorf("%.200q names no model on a hub: write hf:ORG/MODEL or hf:ORG/MODEL@REVISION", path)
	}
	if len(revision) > maxRevision || !revisionPattern.MatchString(revision) || strings.Contains(revision, "..") {
		return Ref{}, fmt.Errorf("%.200q has no valid revision: write a branch, a tag or a commit after the @", path)
	}
	return Ref{Org: org, Model: model, Revision: revision}, nil
}

// cacheFolder matches a folder of a model in the cache of any machine.
var cacheFolder = regexp.MustCompile(`/models--([^/]+)--([^/]+)/snapshots/([0-9a-f]{40})/?$`)

// RefOf returns the reference of the model that a program has loaded from root: the name of a repository, or its folder in a cache. ok is
// false for another folder.
func RefOf(root string) (ref Ref, ok bool) {
	if parts := cacheFolder.FindStringSubmatch(root); parts != nil {
		root = parts[1] + "/" + parts[2] + "@" + parts[3]
	}
	ref, err := ParseRef(prefix + root)
	return ref, err == nil
}

// validName reports whether a part of a repository's name follows the rules of the hub. The cache separates parts with two hyphens.
func validName(part string) bool {
	return namePattern.MatchString(part) && !strings.Contains(part, "--") && !strings.Contains(part, "..")
}

// Name returns ORG/MODEL, as engines take it.
func (r Ref) Name() string { return r.Org + "/" + r.Model }

// String returns the reference as ParseRef reads it.
func (r Ref) String() string {
	if r.Revision == MainRevision {
		return prefix + r.Name()
	}
	return prefix + r.Name() + "@" + r.Revision
}

// folder is the name of the model's folder in a cache.
func (r Ref) folder() string { return "models--" + r.Org + "--" + r.Model }

// errNotCommit is the error of a hub or a cache that names a commit which is none.
var errNotCommit = errors.New("the commit is not 40 hexadecimal digits")
