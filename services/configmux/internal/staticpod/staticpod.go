// Package staticpod turns the bytes of a manifest into pods that can run, and into the config maps and secrets that they use
// on a node without an API server: it decodes strictly, applies the defaults of a static pod and those of the API, validates,
// and refuses what needs an API server and the privileges that pods of the source may not have.
//
// It stands between the sources that read bytes (filesource, httpsource) and the mux. It is a function of its arguments: it knows
// no disk, no clock and no earlier version of a manifest.
package staticpod

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/privilege"
)

// maxProblems bounds how many problems are reported of one manifest: enough to mend it, and a manifest of ten thousand
// broken documents does not fill the memory with errors.
const maxProblems = 20

// Origin says where a manifest comes from. Node and Path are part of the UIDs that are made for its pods.
type Origin struct {
	// Source is the name of the source that reads the manifest.
	Source string
	// Allowed says which sources' pods may reach beyond their own walls.
	Allowed privilege.Allowed
	// Node is the node's name. Pods get it as a suffix to their names, and as spec.nodeName.
	Node string
	// Standalone is true on a node without an API server. Only there a manifest may have config maps and secrets, and its pods
	// may name them: elsewhere these are the API server's.
	Standalone bool
	// Path is the file that the manifest was read from, as it was configured and not as symlinks resolve it, or the URL,
	// without what may be secret in it.
	Path string
}

// Problem is one thing that is wrong with a manifest.
type Problem struct {
	// Pod is "namespace/name" of the pod, with the node's suffix; empty when the manifest does not let it be known.
	Pod string
	// Object is the config map or secret that it is about, as people name it, "configmap default/settings"; empty of a pod.
	Object string
	// Field is the path of the field, for example "spec.containers[0].image"; empty when it is not about one.
	Field string
	// Message says what is wrong, and on which line where that is known.
	Message string
}

// Error makes a problem readable in a log.
func (p Problem) Error() string {
	parts := make([]string, 0, 4)
	for _, part := range []string{p.Pod, p.Object, p.Field, p.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// Result is what a manifest holds.
type Result struct {
	// Pods are the good ones, in the order of the manifest. Names may repeat: that is for the reader of all manifests
	// to judge.
	Pods []*v1.Pod
	// Objects are the good config maps and secrets, in the order of the manifest. Names may repeat.
	Objects []*apiobject.Object
	// Problems are those of the others. One pod can have several. None has a value of a secret.
	Problems []Problem
	// Ignored is what the good pods have and should not, and what counts as if it were not there.
	Ignored []Problem
	// Incomplete is true when some part of the manifest cannot be told to be of a certain pod, so that nothing can be
	// concluded from a pod's absence. Half-written files are so.
	Incomplete bool
}

// Decode reads a manifest: one pod or one list of pods as JSON, or a stream of YAML documents, each of which is either.
// It never fails as a whole: what is wrong is in the result, beside what is good. An empty manifest is a problem, since
// that is what a file looks like which is just being written; who wants no pods writes an empty list.
func Decode(data []byte, origin Origin) Result {
	d := decoder{origin: origin}
	if err := checkText(data); err != nil {
		d.unnamed("", err.Error())
		return d.finish()
	}
	documents := 0
	for doc := range documentsOf(data) {
		documents++
		d.document(doc)
	}
	if documents == 0 && len(d.result.Problems) == 0 {
		d.unnamed("", "the manifest is empty: write a Pod into it, or a List with no items if no pod is meant")
	}
	return d.finish()
}

// decoder gathers the outcome of one manifest.
type decoder struct {
	origin  Origin
	result  Result
	dropped int
	// ignored is how many entries of Ignored were too many.
	ignored int
	// aliased is by how much the aliases of the documents so far make the manifest larger.
	aliased int

	// doc is the document that is being decoded; root is its tree, once parsed is true and if it can be had.
	doc    document
	root   *yamlv3.Node
	parsed bool
}

// document takes one document of the manifest.
func (d *decoder) document(doc document) {
	d.doc, d.root, d.parsed = doc, nil, false
	if err := d.useAliases(doc); err != nil {
		d.unnamed("", fmt.Sprintf("cannot parse it: %s", err))
		return
	}
	object, err := doc.object()
	if err != nil {
		d.unnamed("", fmt.Sprintf("cannot parse it: %s", err))
		return
	}
	d.object(object, "", "")
}

// podKind is the kind of a pod.
const podKind = "Pod"

// object takes one document, or one item of a list, whose place in the list is then in where, and what its kind is when it
// does not say so in unsaid.
func (d *decoder) object(object map[string]any, where, unsaid string) {
	apiVersion, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	if kind == "" {
		kind = unsaid
	}
	of, listed := listOf(kind)
	if apiVersion != "v1" && (apiVersion != "" || where == "") {
		d.unnamed(join(where, "apiVersion"), fmt.Sprintf("must be %q, not %q", "v1", apiVersion))
		return
	}
	switch {
	case kind == podKind:
		d.pod(object, where)
	case apiobject.Kind(kind).Known():
		d.configObject(apiobject.Kind(kind), object, where)
	case listed && where == "":
		d.list(object, of)
	default:
		d.unnamed(join(where, "kind"), fmt.Sprintf("must be %s, not %q", d.accepted(), kind))
	}
}

// listOf returns what the items of a list are that do not say so themselves; listed is false for a kind that is no list.
func listOf(kind string) (of string, listed bool) {
	switch of, listed = strings.CutSuffix(kind, "List"); {
	case !listed:
		return "", false
	case of == "":
		return podKind, true
	default:
		return of, of == podKind || apiobject.Kind(of).Known()
	}
}

// accepted says which kinds a manifest may have.
func (d *decoder) accepted() string {
	if d.origin.Standalone {
		return "Pod, ConfigMap, Secret, or a list of them (List, PodList, ConfigMapList, SecretList)"
	}
	return "Pod, PodList or List"
}

// list takes a list, whose items are of a kind unless they say another; lists do not nest.
func (d *decoder) list(object map[string]any, of string) {
	// Sorted, so that the same manifest has the same problems each time it is read.
	for _, field := range slices.Sorted(maps.Keys(object)) {
		switch field {
		case "apiVersion", "kind", "metadata", "items":
		default:
			d.unnamed(field, "a list has no such field")
		}
	}
	items, isList := object["items"].([]any)
	if !isList && object["items"] != nil {
		d.unnamed("items", "must be a list of objects")
		return
	}
	for i, item := range items {
		where := fmt.Sprintf("items[%d]", i)
		entry, isObject := item.(map[string]any)
		if !isObject {
			d.unnamed(where, "must be an object")
			continue
		}
		d.object(entry, where, of)
	}
}

// unnamed reports a problem of a part that nothing can be made out of.
func (d *decoder) unnamed(field, message string) {
	d.result.Incomplete = true
	d.problem(Problem{Field: field, Message: message})
}

func (d *decoder) problem(p Problem) {
	if len(d.result.Problems) == maxProblems {
		d.dropped++
		d.result.Incomplete = true
		return
	}
	d.result.Problems = append(d.result.Problems, d.withLine(p))
}

// ignore reports what is taken as if it were not there.
func (d *decoder) ignore(p Problem) {
	if len(d.result.Ignored) == maxProblems {
		d.ignored++
		return
	}
	d.result.Ignored = append(d.result.Ignored, d.withLine(p))
}

// withLine puts the line of a problem's field before its message, where it is known.
func (d *decoder) withLine(p Problem) Problem {
	if p.Field == "" {
		return p
	}
	if line := d.lineOf(p.Field); line > 0 {
		p.Message = fmt.Sprintf("line %d: %s", line, p.Message)
	}
	return p
}

func (d *decoder) finish() Result {
	if d.dropped > 0 {
		d.result.Problems = append(d.result.Problems, Problem{
			Message: fmt.Sprintf("%d more problems are not shown: mend these first", d.dropped),
		})
	}
	if d.ignored > 0 {
		d.result.Ignored = append(d.result.Ignored, Problem{
			Message: fmt.Sprintf("%d more annotations are ignored and not shown: mend these first", d.ignored),
		})
	}
	return d.result
}

// join puts a list's index before the path of a field.
func join(where, field string) string {
	switch {
	case where == "":
		return field
	case field == "":
		return where
	default:
		return where + "." + field
	}
}

// isBlank reports whether a document has nothing but space and comments.
func isBlank(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}
