// Package staticpod decodes manifests into pods that can run, and into the config maps, secrets and persistent volume
// claims that they use on a node without an API server. It decodes strictly, applies the defaults of static pods and of
// the API, validates, and refuses references to an API server and privileges that pods of the source may not have.
//
// It is between the sources that read bytes (filesource, httpsource) and the mux. It is pure: it has no disk, no clock
// and no earlier version of a manifest.
package staticpod

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// maxProblems bounds the number of reported problems of one manifest, so that a manifest of ten thousand invalid
// documents does not fill the memory with errors.
const maxProblems = 20

// Origin describes the source of a manifest. Node and Path are inputs to the UIDs that are computed for its pods.
type Origin struct {
	// Source is the name of the source that reads the manifest.
	Source string
	// Allowed lists the sources whose pods may have access to the host.
	Allowed privilege.Allowed
	// Node is the node's name. It is the suffix of the pods' names, and their spec.nodeName.
	Node string
	// Standalone is true for a node without an API server. Only there a manifest may contain config maps, secrets and
	// claims, and its pods may refer to them; elsewhere the API server has these.
	Standalone bool
	// Path is the path of the file as configured, before resolving symlinks, or the URL without secret parts.
	Path string
}

// Problem is one problem in a manifest.
type Problem struct {
	// Pod is "namespace/name" of the pod, with the node's suffix; empty if unknown.
	Pod string
	// Object is the readable name of the config map, secret or claim, "configmap default/settings"; empty for a pod.
	Object string
	// Field is the path of the field, for example "spec.containers[0].image"; empty if the problem is not about one.
	Field string
	// Message describes the problem, with its line if that is known.
	Message string
}

// Error returns the problem as text for a log.
func (p Problem) Error() string {
	parts := make([]string, 0, 4)
	for _, part := range []string{p.Pod, p.Object, p.Field, p.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// Result is the decoded content of a manifest.
type Result struct {
	// Pods are the valid pods, in the order of the manifest. Names may repeat; the reader of all manifests resolves that.
	Pods []*v1.Pod
	// Objects are the valid config maps, secrets and claims, in the order of the manifest. Names may repeat.
	Objects []*apiobject.Object
	// Problems are the problems of the others. A pod can have several. They contain no value of a secret.
	Problems []Problem
	// Ignored lists the fields of valid pods that are ignored, and parts without an effect.
	Ignored []Problem
	// Incomplete is true if a part of the manifest cannot be attributed to a pod, so that the absence of a pod has no
	// meaning. Half-written files are incomplete.
	Incomplete bool
}

// Decode decodes a manifest: one pod or one list of pods as JSON, or a stream of YAML documents, each of which is
// either. It never fails as a whole: problems are in the result, beside the valid pods. An empty manifest is a problem,
// because a file that is being written looks like that; an empty list means no pods.
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

// decoder collects the result of one manifest.
type decoder struct {
	origin  Origin
	result  Result
	dropped int
	// ignored is the number of dropped entries of Ignored.
	ignored int
	// aliased is the size in bytes that the aliases of the documents so far add to the manifest.
	aliased int

	// doc is the present document; root is its tree if parsed is true and the document is valid.
	doc    document
	root   *yamlv3.Node
	parsed bool
}

// document decodes one document of the manifest.
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

// object decodes one document, or one item of a list, whose place in the list is then in where. defaultKind is the kind
// of an item without one.
func (d *decoder) object(object map[string]any, where, defaultKind string) {
	apiVersion, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	if kind == "" {
		kind = defaultKind
	}
	itemKind, listed := listOf(kind)
	version := v1.SchemeGroupVersion.String()
	if known := cmp.Or(itemKind, kind); apiobject.Kind(known).Known() {
		version = apiobject.Kind(known).APIVersion()
	}
	if apiVersion != version && (apiVersion != "" || where == "") {
		d.unnamed(join(where, "apiVersion"), fmt.Sprintf("must be %q, not %q", version, apiVersion))
		return
	}
	switch {
	case kind == podKind:
		d.pod(object, where)
	case apiobject.Kind(kind).Known():
		d.configObject(apiobject.Kind(kind), object, where)
	case listed && where == "":
		d.list(object, itemKind)
	default:
		d.unnamed(join(where, "kind"), fmt.Sprintf("must be %s, not %q", d.accepted(), kind))
	}
}

// listOf returns the default kind of a list's items; listed is false for a kind that is no list.
func listOf(kind string) (itemKind string, listed bool) {
	switch itemKind, listed = strings.CutSuffix(kind, "List"); {
	case !listed:
		return "", false
	case itemKind == "":
		return podKind, true
	default:
		return itemKind, itemKind == podKind || apiobject.Kind(itemKind).Known()
	}
}

// accepted returns the kinds that a manifest may contain.
func (d *decoder) accepted() string {
	if d.origin.Standalone {
		return "Pod, ConfigMap, Secret, PersistentVolumeClaim, StorageClass, CSIDriver, or a list of them (List, PodList, " +
			"ConfigMapList, SecretList, PersistentVolumeClaimList, StorageClassList, CSIDriverList)"
	}
	return "Pod, PodList or List"
}

// list decodes a list with items of the default kind of. Lists do not nest.
func (d *decoder) list(object map[string]any, itemKind string) {
	// Sorted, so that the same manifest always has the same problems.
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
		d.object(entry, where, itemKind)
	}
}

// unnamed reports a problem of a part that cannot be attributed.
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

// ignore reports an ignored part.
func (d *decoder) ignore(p Problem) {
	if len(d.result.Ignored) == maxProblems {
		d.ignored++
		return
	}
	d.result.Ignored = append(d.result.Ignored, d.withLine(p))
}

// withLine adds the line of a problem's field to its message, if it is known.
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
			Message: fmt.Sprintf("%d more problems are not shown: correct these first", d.dropped),
		})
	}
	if d.ignored > 0 {
		d.result.Ignored = append(d.result.Ignored, Problem{
			Message: fmt.Sprintf("%d more annotations are ignored and not shown: correct these first", d.ignored),
		})
	}
	return d.result
}

// join prefixes the path of a field with a list's index.
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

// isBlank reports whether a document contains only space and comments.
func isBlank(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}
